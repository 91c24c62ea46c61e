"""`backup` and `restore` with real servers of each version."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from deploy.installer import loading
from deploy.installer.credentials import Credentials
from deploy.installer.host import Host
from deploy.installer.layout import ADMIN, REDIS_UNIT
from deploy.installer.manifest import Manifest
from deploy.installer.resp import RedisCommandError, RedisUnavailable
from tests.support.deploy.fake_machine import FakeMachine, FakeSystemd
from tests.support.processes.worker import wait_until
from tests.support.servers import BUNDLED, REAL, SYSTEM, RedisProcess, require_binary

pytestmark = pytest.mark.process


class SystemdWithRedis(FakeSystemd):
    """Starts and stops a real Redis server for redis.service."""

    def __init__(self, host: Host, binary: str) -> None:
        super().__init__(host, has_systemd=True)
        self._binary = binary
        self._running: RedisProcess | None = None

    def _systemctl(self, verb: str, *units: str) -> None:
        super()._systemctl(verb, *units)
        if REDIS_UNIT in units and verb in ("stop", "restart"):
            self.end()
        if REDIS_UNIT in units and verb in ("start", "restart") and self._running is None:
            self._start()

    def _start(self) -> None:
        layout = self._host.layout
        layout.socket.parent.mkdir(parents=True, exist_ok=True)
        text = layout.redis_conf.read_text()
        for path in ("/etc/sluice", "/run/sluice", "/var/lib/sluice"):
            text = text.replace(path, str(layout.at(path)))
        moved = layout.root / "moved.conf"
        moved.write_text(text)
        acl = layout.root / "moved.acl"
        acl.write_text(layout.users_acl.read_text())
        command = [self._binary, str(moved), "--aclfile", str(acl)]
        self._running = RedisProcess(command, layout.root / "moved.log", **self._connection())
        self._running.start()

    def _connection(self) -> dict[str, Any]:
        layout = self._host.layout
        password = Credentials.load_or_make(layout).passwords[ADMIN]
        return {"unix_socket_path": str(layout.socket), "username": ADMIN, "password": password}

    def client(self) -> redis.Redis:
        return redis.Redis(retry=Retry(NoBackoff(), 0), **self._connection())

    def end(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None


@pytest.fixture
def homes() -> Iterator[Path]:
    """Short paths: socket names have a length limit."""
    directory = Path(tempfile.mkdtemp(prefix="slb-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def machines(homes: Path) -> Iterator[Any]:
    """Creates machines with a running Redis of a given kind."""
    made: list[FakeMachine] = []

    def make(kind: str, name: str = "one") -> FakeMachine:
        binary = require_binary(kind)
        machine = FakeMachine(homes / name)
        machine.systemd = SystemdWithRedis(machine.host, binary)
        made.append(machine)
        assert machine.install("--redis-server", binary) == 0
        return machine

    yield make
    for machine in made:
        assert isinstance(machine.systemd, SystemdWithRedis)
        machine.systemd.end()


def client_of(machine: FakeMachine) -> redis.Redis:
    assert isinstance(machine.systemd, SystemdWithRedis)
    return machine.systemd.client()


#: Keys after `fill`.
COUNT = 22


def fill(machine: FakeMachine) -> None:
    with client_of(machine) as client:
        for number in range(COUNT - 2):
            client.hset(f"job:{number}", "status", "queued")
        client.xadd("jobs:stream", {"job_id": "1"}, id="1-1")
        client.xgroup_create("jobs:stream", "workers", "0")
        client.set("passing", "x", px=1)
        client.set("lasting", "x", ex=3600)
        wait_until(lambda: not client.exists("passing"))


@pytest.mark.parametrize("kind", REAL)
def test_backup_and_restore(machines: Any, homes: Path, kind: str) -> None:
    machine: FakeMachine = machines(kind)
    fill(machine)
    settings = machine.layout.config / "gateway.env"
    settings.write_text("JOB_TTL_S=60\n")
    file = homes / "jobs.tar.gz"
    assert machine.run("backup", file) == 0
    assert f"{COUNT} keys" in machine.output
    assert file.stat().st_mode & 0o777 == 0o600
    passwords = machine.layout.redis_url(ADMIN).read_text()

    with client_of(machine) as client:
        client.flushall()
        client.set("job:later", "x")
    settings.write_text("JOB_TTL_S=99\n")
    assert machine.run("restore", file, "--yes") == 0, machine.output
    assert f"restored {COUNT} keys of {COUNT}" in machine.output
    with client_of(machine) as client:
        assert client.dbsize() == COUNT
        assert client.hget("job:7", "status") == b"queued"
        assert client.xinfo_groups("jobs:stream")[0]["name"] == b"workers"
        assert 3500 < client.ttl("lasting") <= 3600
        assert not client.exists("job:later")
    assert settings.read_text() == "JOB_TTL_S=60\n"
    assert machine.layout.redis_url(ADMIN).read_text() == passwords
    # The old data is kept, and the append-only file has the restored data.
    assert len(list(machine.layout.state.glob("redis.before-restore-*"))) == 1
    with client_of(machine) as client:
        client.set("job:after", "x")
    machine.systemd.restart([REDIS_UNIT])
    with client_of(machine) as client:
        assert client.dbsize() == COUNT + 1
        assert client.config_get("appendonly") == {"appendonly": "yes"}


def test_only_a_newer_redis_restores_a_backup(machines: Any, homes: Path) -> None:
    """The backup's passwords are valid afterwards, in the ACL syntax of the other Redis."""
    old, new = machines(BUNDLED, "one"), machines(SYSTEM, "two")
    file = homes / "b.tgz"
    assert new.run("backup", file) == 0
    assert old.run("restore", file, "--yes") == 78
    assert "cannot read it" in old.error
    fill(old)
    assert old.run("backup", file) == 0
    assert new.run("restore", file, "--yes") == 0, new.output
    assert new.layout.redis_url(ADMIN).read_text() == old.layout.redis_url(ADMIN).read_text()
    with client_of(new) as client:
        assert client.dbsize() == COUNT
    assert "(" in new.layout.users_acl.read_text()  # selectors


def damage(file: Path, *, with_digest: bool) -> None:
    """Replaces the snapshot in an archive, and its digest."""
    with tarfile.open(file) as tar:
        members = {each.name: tar.extractfile(each).read() for each in tar if each.isfile()}  # type: ignore[union-attr]
    snapshot = members["redis/dump.rdb"] = b"REDIS0009 and nothing"
    if with_digest:
        contents = json.loads(members["backup.json"])
        contents["files"]["redis/dump.rdb"] = hashlib.sha256(snapshot).hexdigest()
        members["backup.json"] = json.dumps(contents).encode()
    with tarfile.open(file, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def test_a_damaged_backup_changes_nothing(machines: Any, homes: Path) -> None:
    machine: FakeMachine = machines(SYSTEM)
    fill(machine)
    file = homes / "b.tgz"
    assert machine.run("backup", file) == 0
    whole = file.read_bytes()
    machine.systemd.commands = []
    for content in (whole[: len(whole) // 2], b"", b"rubbish"):
        file.write_bytes(content)
        assert machine.run("restore", file, "--yes") == 78
    file.write_bytes(whole)
    damage(file, with_digest=False)
    assert machine.run("restore", file, "--yes") == 78
    assert "does not match" in machine.error
    assert machine.run("restore", homes / "nothing", "--yes") == 78
    assert machine.systemd.commands == []
    # A snapshot that only Redis can recognise as damaged restores the previous state.
    damage(file, with_digest=True)
    assert machine.run("restore", file, "--yes") == 1
    assert "cannot read the snapshot" in machine.error
    with client_of(machine) as client:
        assert client.dbsize() == COUNT
    assert not list(machine.layout.state.glob("*restore*"))
    assert "redis-gateway.service" in machine.systemd.active


def test_a_loading_snapshot_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis refuses commands until it has loaded the snapshot."""
    client = Mock(execute=Mock(side_effect=[RedisCommandError("LOADING"), 3]))
    connect = Mock(side_effect=[RedisUnavailable("not yet", ""), client, client])
    monkeypatch.setattr(loading, "Resp", connect)
    running = Mock(poll=Mock(return_value=None))
    assert loading._connected(running, tmp_path / "socket", tmp_path / "log") is client
    assert connect.call_count == 3
    client.close.assert_called_once()


def test_without_a_running_redis(machines: Any, homes: Path) -> None:
    machine: FakeMachine = machines(SYSTEM)
    machine.systemd.stop([REDIS_UNIT])
    assert machine.run("backup", homes / "b.tgz") == 1
    assert "systemctl start redis.service" in machine.error
    assert not (homes / "b.tgz").exists()
    assert machine.run("backup", homes / "no" / "b.tgz") == 78


def test_nothing_installed(homes: Path) -> None:
    machine = FakeMachine(homes / "empty")
    for command in ("backup", "restore"):
        assert machine.run(command, homes / "b.tgz", "--yes") == 78
        assert "install.sh install" in machine.error
    assert Manifest.load(machine.layout.manifest) is None
