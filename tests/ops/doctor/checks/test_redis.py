"""Checks of Redis, on real servers with bad settings and on fake ones."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from ops.doctor.checks import access, persistence
from ops.doctor.checks import redis as checks
from ops.doctor.finding import Check, CheckSkipped, Finding, Health
from ops.doctor.machine import Disk, Machine
from ops.doctor.redis_server import RedisServer
from ops.redis_target import RedisTarget
from tests.ops.doctor.machines import GB, finding_of, make_machine, real_machine, status_of, write
from tests.support.processes.gateway import free_port
from tests.support.processes.worker import wait_until
from tests.support.servers import REAL, RealServer, require_binary

Start = Callable[..., RealServer]
ALL = (*checks.CHECKS, *persistence.CHECKS, *access.CHECKS)
GOOD = (
    *("--appendonly", "yes", "--maxmemory-policy", "noeviction", "--maxmemory", "200mb"),
    *("--unixsocketperm", "700"),
)


@pytest.fixture(params=REAL)
def start(request: Any) -> Iterator[Start]:
    """Start servers with the given options."""
    started: list[RealServer] = []

    def start_server(*options: str) -> RealServer:
        started.append(RealServer(require_binary(request.param), *options))
        return started[-1]

    yield start_server
    for server in started:
        server.close()


class FakeClient:
    """A client that returns the given INFO and settings."""

    def __init__(self, info: dict[str, Any] | None = None, **settings: str) -> None:
        self._info = info or {}
        self._settings = settings
        self.users = ["user default on nopass sanitize-payload ~* &* +@all"]

    def ping(self) -> bool:
        return True

    def info(self) -> dict[str, Any]:
        return self._info

    def config_get(self, name: str) -> dict[bytes, bytes]:
        value = self._settings.get(name.replace("-", "_"))
        return {} if value is None else {name.encode(): value.encode()}

    def acl_list(self) -> list[str]:
        return self.users


def fake_machine(
    client: Any, root: Path = Path("/"), url: str = "redis://localhost", **options: Any
) -> Machine:
    return make_machine(root, redis=RedisServer(RedisTarget(url, "REDIS_URL"), client), **options)


def all_of(subject: Machine) -> dict[str, Finding]:
    found = {}
    for check in ALL:
        try:
            found[check.name] = finding_of(check, subject)
        except CheckSkipped as reason:
            found[check.name] = Finding(Health.SKIPPED, str(reason))
    return found


def test_healthy_server(start: Start) -> None:
    found = all_of(real_machine(start(*GOOD)))
    wrong = {name: finding for name, finding in found.items() if finding.status is not Health.OK}
    wrong.pop("redis.latency", None)  # depends on the machine
    wrong.pop("redis.fsync", None)
    assert wrong == {}


def test_insecure_server(start: Start) -> None:
    port = free_port()
    server = start(
        *("--maxmemory-policy", "allkeys-lru", "--maxmemory", "50mb", "--unixsocketperm", "777"),
        *("--stream-node-max-bytes", "4096", "--bind", "0.0.0.0", "--protected-mode", "no"),
        *("--port", str(port)),
    )
    found = all_of(real_machine(server))
    status = {name: finding.status for name, finding in found.items()}
    assert status["redis.eviction"] is Health.FAIL
    assert status["redis.append_only"] is Health.FAIL
    assert status["redis.streams"] is Health.NOTE
    assert status["redis.default_user"] is Health.WARN
    assert status["redis.bind"] is Health.FAIL
    assert status["redis.socket"] is Health.WARN
    assert str(port) in found["redis.bind"].seen


@pytest.mark.parametrize("name", ["redis.eviction", "redis.append_only", "redis.streams"])
def test_fix_solves_the_problem(start: Start, name: str) -> None:
    """The command in the fix, sent to the server, solves the problem."""
    server = start("--maxmemory-policy", "allkeys-lru", "--stream-node-max-bytes", "4096")
    [check] = [check for check in ALL if check.name == name]
    command = finding_of(check, real_machine(server)).fix.split("`")[1]
    assert command.startswith(f"redis-cli -s {server.dir}/s CONFIG SET ")
    server.client.execute_command(*command.split()[3:])
    assert status_of(check, real_machine(server)) is Health.OK
    # Redis cannot be stopped while it writes its first append-only file.
    wait_until(lambda: not server.client.info("persistence")["aof_rewrite_in_progress"])
    wait_until(lambda: not server.client.info("persistence")["aof_rewrite_scheduled"])


def test_disabled_default_user(start: Start) -> None:
    server = start(*GOOD, "--port", str(free_port()))
    assert status_of(access.default_user, real_machine(server)) is Health.WARN
    server.client.execute_command("ACL", "SETUSER", "boss", "on", ">pw", "~*", "&*", "+@all")
    server.client.execute_command("ACL", "SETUSER", "default", "off")
    path = f"{server.dir}/s"
    boss = make_machine(
        Path("/"), redis=RedisServer(RedisTarget(f"unix://boss:pw@{path}", "--redis"))
    )
    assert status_of(access.default_user, boss) is Health.OK
    assert "pw" not in finding_of(checks.reachable, boss).seen
    # Without credentials the connection is refused, with the cause.
    anonymous = make_machine(Path("/"), redis=RedisServer(RedisTarget(f"unix://{path}", "--redis")))
    found = finding_of(checks.reachable, anonymous)
    assert found.status is Health.FAIL
    assert "user name or password" in found.cause
    wrong = make_machine(
        Path("/"), redis=RedisServer(RedisTarget(f"unix://boss:no@{path}", "--redis"))
    )
    found = finding_of(checks.reachable, wrong)
    assert found.fix == f"redis-cli -s {path} --user boss --askpass PING"


def test_user_with_few_rights_skips_checks(start: Start) -> None:
    server = start(*GOOD)
    rules = ("on", ">pw", "~*", "-@all", "+ping", "+info", "+time")
    server.client.execute_command("ACL", "SETUSER", "few", *rules)
    subject = make_machine(
        Path("/"), redis=RedisServer(RedisTarget(f"unix://few:pw@{server.dir}/s", "--redis"))
    )
    found = all_of(subject)
    assert found["redis.reachable"].status is Health.OK
    assert found["redis.version"].status is Health.OK
    assert found["redis.clock"].status is Health.OK
    for name in ("redis.eviction", "redis.append_only", "redis.default_user", "redis.bind"):
        assert found[name].status is Health.SKIPPED, name
        assert "may not" in found[name].seen


def test_replica(start: Start) -> None:
    server = start(*GOOD)
    server.client.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))
    found = finding_of(checks.role, real_machine(server))
    assert found.status is Health.FAIL
    assert "REPLICAOF NO ONE" in found.fix


def test_hanging_server(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(*GOOD)
    subject = real_machine(server)
    os.kill(server.process.pid, 19)
    try:
        started = time.monotonic()
        found = finding_of(checks.reachable, subject)
        assert found.status is Health.FAIL
        assert "does not reply" in found.cause
        assert time.monotonic() - started < 20
        sent: list[Any] = []
        assert subject.redis is not None
        client = subject.redis.client
        monkeypatch.setattr(client, "execute_command", lambda *args, **_: sent.append(args))
        for check in ALL[1:]:  # no other check waits for it
            with pytest.raises(CheckSkipped):
                check.run(subject)
        assert sent == []
    finally:
        os.kill(server.process.pid, 18)


def test_no_redis(tmp_path: Path) -> None:
    found = finding_of(checks.reachable, make_machine(tmp_path))
    assert found.status is Health.FAIL
    assert found.fix == "sluice up"
    write(tmp_path, "/etc/systemd/system/redis-gateway.service")
    found = finding_of(
        checks.reachable, make_machine(tmp_path)
    )  # in an installation, only root can read the URL
    assert (found.status, found.fix) == (Health.WARN, "sudo sluice doctor")
    for url, expected in {
        f"unix://{tmp_path}/none": "No such file",
        f"redis://127.0.0.1:{free_port()}": "refused",
        "redis://127.0.0.1:port": "not a Redis URL",
    }.items():
        subject = make_machine(tmp_path, redis=RedisServer(RedisTarget(url, "REDIS_URL")))
        found = finding_of(checks.reachable, subject)
        assert found.status is Health.FAIL
        assert expected in found.cause, found
        with pytest.raises(CheckSkipped):
            checks.version.run(subject)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (redis.exceptions.BusyLoadingError("LOADING"), "loading"),
        (redis.exceptions.ConnectionError("Error 13 connecting: Permission denied."), "may not"),
        (redis.exceptions.TimeoutError("Timeout reading"), "does not reply"),
        (
            redis.exceptions.ResponseError("NOAUTH Authentication required."),
            "user name or password",
        ),
    ],
)
def test_connection_errors_are_explained(tmp_path: Path, error: Exception, expected: str) -> None:
    class Refusing(FakeClient):
        def ping(self) -> bool:
            raise error

    found = finding_of(checks.reachable, fake_machine(Refusing(), tmp_path))
    assert found.status is Health.FAIL
    assert expected in found.cause


@pytest.mark.parametrize(
    ("version", "status"),
    [("6.0.16", Health.FAIL), ("6.2.0", Health.OK), ("8.4.0", Health.OK), ("x", Health.NOTE)],
)
def test_redis_version(version: str, status: Health) -> None:
    found = finding_of(checks.version, fake_machine(FakeClient({"redis_version": version})))
    assert found.status is status


@pytest.mark.parametrize(
    ("check", "info", "settings", "status"),
    [
        (checks.evicted, {"evicted_keys": 3}, {"maxmemory_policy": "allkeys-lru"}, Health.FAIL),
        (checks.eviction, {}, {"maxmemory_policy": "volatile-lru", "maxmemory": "0"}, Health.WARN),
        (checks.memory, {"used_memory": 10}, {"maxmemory": "0"}, Health.NOTE),
        (checks.memory, {"used_memory": 80 << 20}, {"maxmemory": str(100 << 20)}, Health.WARN),
        (checks.memory, {"used_memory": 95 << 20}, {"maxmemory": str(100 << 20)}, Health.FAIL),
        (
            checks.memory,
            {"used_memory": 1, "total_system_memory": 8 * GB},
            {"maxmemory": str(7 * GB)},
            Health.WARN,
        ),
        (checks.clients, {"connected_clients": 95, "maxclients": 100}, {}, Health.FAIL),
        (checks.clients, {"rejected_connections": 2, "maxclients": 100}, {}, Health.WARN),
        (checks.clients, {"connected_clients": 5}, {"maxclients": "100"}, Health.OK),
        (persistence.append_only, {}, {"appendonly": "yes", "appendfsync": "no"}, Health.WARN),
        (persistence.last_write, {"aof_last_write_status": "err"}, {"dir": "/"}, Health.FAIL),
        (persistence.last_write, {"rdb_last_bgsave_status": "err"}, {}, Health.FAIL),
        (persistence.fsync, {"aof_delayed_fsync": 7}, {}, Health.NOTE),
        (persistence.fsync, {"latest_fork_usec": 2_000_000}, {}, Health.WARN),
        (access.bind, {}, {"port": "6379", "bind": "127.0.0.1 -::1"}, Health.OK),
        (access.bind, {}, {"port": "6379", "bind": "* -::*", "protected_mode": "yes"}, Health.WARN),
        (access.bind, {}, {"port": "6379", "bind": "", "protected_mode": "no"}, Health.FAIL),
        (access.bind, {}, {"port": "0"}, Health.OK),
        (access.default_user, {}, {"port": "6379"}, Health.WARN),
    ],
)
def test_findings_from_info_and_settings(
    check: Check, info: dict[str, Any], settings: dict[str, str], status: Health
) -> None:
    assert status_of(check, fake_machine(FakeClient(info, **settings))) is status


def test_network_access_with_a_password_is_a_note() -> None:
    client = FakeClient({}, port="6379", bind="0.0.0.0")
    client.users = ["user default on #abc ~* &* +@all"]
    assert status_of(access.bind, fake_machine(client)) is Health.NOTE
    assert status_of(access.default_user, fake_machine(client)) is Health.OK


@pytest.mark.parametrize(
    ("free", "read_only", "status"),
    [
        (50 * GB, False, Health.OK),
        (3 * GB, False, Health.WARN),
        (GB, False, Health.FAIL),
        (50 * GB, True, Health.FAIL),
    ],
)
def test_disk_space_for_the_append_only_file(
    tmp_path: Path, free: int, read_only: bool, status: Health
) -> None:
    client = FakeClient({"aof_current_size": 2 * GB}, dir="/data")
    disk = Disk(100 * GB, free, 10, 10, read_only)
    subject = fake_machine(client, tmp_path, disk=lambda path: disk)
    assert status_of(persistence.disk, subject) is status


def test_remote_disk_is_skipped() -> None:
    with pytest.raises(CheckSkipped, match="another machine"):
        persistence.disk.run(fake_machine(FakeClient(), url="redis://elsewhere"))


def test_clock_difference(start: Start) -> None:
    server = start(*GOOD)
    for seconds, status in {0.0: Health.OK, 5.0: Health.WARN, 3600.0: Health.FAIL}.items():
        subject = real_machine(server, now=lambda ahead=seconds: time.time() + ahead)
        assert status_of(checks.clock, subject) is status


def test_fix_uses_redis_local_conf() -> None:
    client = FakeClient({"config_file": "/etc/sluice/redis.conf"}, maxmemory_policy="allkeys-lru")
    found = finding_of(checks.eviction, fake_machine(client))
    assert "to /etc/sluice/redis-local.conf" in found.fix


def test_private_redis_has_no_configuration_file(tmp_path: Path) -> None:
    target = RedisTarget(f"unix://{tmp_path}/s", f"the private Redis under {tmp_path}")
    subject = make_machine(tmp_path, redis=RedisServer(target, FakeClient({}, maxmemory="0")))  # type: ignore[arg-type]
    found = finding_of(checks.memory, subject)
    assert "redis.conf" not in found.fix


def test_open_socket_with_passwords(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.touch()
    path.chmod(0o777)
    client = FakeClient()
    client.users = ["user default off"]
    subject = fake_machine(client, Path("/"), f"unix://{path}")
    assert status_of(access.socket, subject) is Health.NOTE
    path.chmod(stat.S_IRWXU)
    assert status_of(access.socket, subject) is Health.OK
    with pytest.raises(CheckSkipped, match="TCP"):
        access.socket.run(fake_machine(client))
