"""Checks of Redis, on real servers with bad settings and on fake ones."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from sluice.ops.doctor import redis_server
from sluice.ops.doctor.checks import access, persistence
from sluice.ops.doctor.checks import redis as checks
from sluice.ops.doctor.finding import Check, CheckSkipped, Finding, Health
from sluice.ops.doctor.machine import Disk, Machine
from sluice.ops.doctor.redis_server import RedisServer
from sluice.ops.redis_target import RedisTarget
from tests.ops.doctor.machines import (
    GB,
    expect,
    expect_skipped,
    finding_of,
    make_machine,
    real_machine,
    write,
)
from tests.support.processes.gateway import free_port
from tests.support.servers import REAL, RealServer, require_binary

Start = Callable[..., RealServer]
ALL = (*checks.CHECKS, *persistence.CHECKS, *access.CHECKS)
GOOD = (
    *("--appendonly", "yes", "--maxmemory-policy", "noeviction", "--maxmemory", "200mb"),
    *("--unixsocketperm", "700"),
)


@pytest.fixture(params=REAL)
def start(request: Any) -> Iterator[Start]:
    started: list[RealServer] = []

    def start_server(*options: str) -> RealServer:
        started.append(RealServer(require_binary(request.param), *options))
        return started[-1]

    yield start_server
    for server in started:
        server.close()


#: Valkey reports 7.2.4 as the version of Redis.
VALKEY = {"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.0"}


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


def machine_as(server: RealServer, user: str) -> Machine:
    """A machine that connects with `name:password@`, or without a user."""
    target = RedisTarget(f"unix://{user}{server.dir}/s", "--redis")
    return make_machine(Path("/"), redis=RedisServer(target))


def all_of(subject: Machine) -> dict[str, Finding]:
    found = {}
    for check in ALL:
        try:
            found[check.name] = finding_of(check, subject)
        except CheckSkipped as reason:
            found[check.name] = Finding(Health.SKIPPED, str(reason))
    return found


def test_healthy_server(start: Start) -> None:
    server = start(*GOOD)
    found = all_of(real_machine(server))
    wrong = {name: finding for name, finding in found.items() if finding.status is not Health.OK}
    wrong.pop("redis.latency", None)  # depends on the machine
    wrong.pop("redis.fsync", None)
    assert wrong == {}
    for seconds, status in {5.0: Health.WARN, 3600.0: Health.FAIL}.items():
        subject = real_machine(server, now=lambda ahead=seconds: time.time() + ahead)
        expect(checks.clock, subject, status)
    server.client.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))
    expect(checks.role, real_machine(server), Health.FAIL, fix="REPLICAOF NO ONE")


def test_insecure_server(start: Start) -> None:
    port = free_port()
    server = start(
        *("--maxmemory-policy", "allkeys-lru", "--maxmemory", "50mb", "--unixsocketperm", "777"),
        *("--stream-node-max-bytes", "4096", "--bind", "0.0.0.0", "--protected-mode", "no"),
        *("--port", str(port)),
    )
    expect(access.default_user, real_machine(server), Health.WARN)
    expect(access.bind, real_machine(server), Health.FAIL, seen=str(port))
    expect(access.socket, real_machine(server), Health.WARN)
    # The command in the fix, sent to the server, solves the problem.
    for check, status in {
        checks.eviction: Health.FAIL,
        persistence.append_only: Health.FAIL,
        checks.streams: Health.NOTE,
    }.items():
        command = expect(check, real_machine(server), status).fix.split("`")[1]
        assert command.startswith(f"redis-cli -s {server.dir}/s CONFIG SET ")
        server.client.execute_command(*command.split()[3:])
        expect(check, real_machine(server), Health.OK)


def test_disabled_default_user(start: Start) -> None:
    server = start(*GOOD, "--port", str(free_port()))
    expect(access.default_user, real_machine(server), Health.WARN)
    server.client.execute_command("ACL", "SETUSER", "boss", "on", ">pw", "~*", "&*", "+@all")
    server.client.execute_command("ACL", "SETUSER", "default", "off")
    boss = machine_as(server, "boss:pw@")
    expect(access.default_user, boss, Health.OK)
    assert "pw" not in finding_of(checks.reachable, boss).seen
    # Without credentials the connection is refused, with the cause.
    expect(checks.reachable, machine_as(server, ""), Health.FAIL, cause="user name or password")
    found = finding_of(checks.reachable, machine_as(server, "boss:no@"))
    assert found.fix == f"redis-cli -s {server.dir}/s --user boss --askpass PING"


def test_user_with_few_rights_skips_checks(start: Start) -> None:
    server = start(*GOOD)
    rules = ("on", ">pw", "~*", "-@all", "+ping", "+info", "+time")
    server.client.execute_command("ACL", "SETUSER", "few", *rules)
    found = all_of(machine_as(server, "few:pw@"))
    for name in ("redis.reachable", "redis.version", "redis.clock"):
        assert found[name].status is Health.OK, name
    for name in ("redis.eviction", "redis.append_only", "redis.default_user", "redis.bind"):
        assert found[name].status is Health.SKIPPED, name
        assert "may not" in found[name].seen


def test_hanging_server(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_server, "REPLY_S", 0.2)
    server = start(*GOOD)
    subject = real_machine(server)
    server.pause()
    try:
        expect(checks.reachable, subject, Health.FAIL, cause="does not reply")
        sent: list[Any] = []
        assert subject.redis is not None
        client = subject.redis.client
        monkeypatch.setattr(client, "execute_command", lambda *args, **_: sent.append(args))
        for check in ALL[1:]:  # no other check waits for it
            expect_skipped(check, subject)
        assert sent == []
    finally:
        server.resume()


def test_no_redis(tmp_path: Path) -> None:
    assert expect(checks.reachable, make_machine(tmp_path), Health.FAIL).fix == "sluice up"
    write(tmp_path, "/etc/systemd/system/redis-gateway.service")
    # In an installation, only root can read the URL.
    found = expect(checks.reachable, make_machine(tmp_path), Health.WARN)
    assert found.fix == "sudo sluice doctor"
    for url, expected in {
        f"unix://{tmp_path}/none": "No such file",
        f"redis://127.0.0.1:{free_port()}": "refused",
        "redis://127.0.0.1:port": "not a Redis URL",
    }.items():
        subject = make_machine(tmp_path, redis=RedisServer(RedisTarget(url, "REDIS_URL")))
        expect(checks.reachable, subject, Health.FAIL, cause=expected)
        expect_skipped(checks.version, subject)


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

    expect(checks.reachable, fake_machine(Refusing(), tmp_path), Health.FAIL, cause=expected)


@pytest.mark.parametrize(
    ("check", "info", "settings", "status"),
    [
        (checks.version, {"redis_version": "6.0.16"}, {}, Health.FAIL),
        (checks.version, {"redis_version": "6.2.0"}, {}, Health.OK),
        (checks.version, {"redis_version": "8.4.0"}, {}, Health.OK),
        (checks.version, {"redis_version": "x"}, {}, Health.NOTE),
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
    expect(check, fake_machine(FakeClient(info, **settings)), status)


def test_the_version_of_valkey_is_shown() -> None:
    found = expect(checks.version, fake_machine(FakeClient(VALKEY)), Health.OK)
    assert found.seen == "Valkey 9.1.0"


@pytest.mark.parametrize(
    ("installed", "unit"),
    [
        ((), "redis-server"),
        (("redis-server",), "redis-server"),
        (("valkey-server",), "valkey-server"),
        (("redis-server", "valkey-server"), "redis-server"),
    ],
)
def test_the_fix_names_the_installed_unit(
    tmp_path: Path, installed: tuple[str, ...], unit: str
) -> None:
    for name in installed:
        write(tmp_path, f"/lib/systemd/system/{name}.service")
    remedies, target = make_machine(tmp_path).remedies, RedisTarget("redis://127.0.0.1:6379", "")
    assert remedies.start_redis(target) == f"sudo systemctl start {unit}"
    assert remedies.redis_log(target) == f"sudo journalctl -u {unit} -n 50 --no-pager"


def test_network_access_with_a_password_is_a_note() -> None:
    client = FakeClient({}, port="6379", bind="0.0.0.0")
    client.users = ["user default on #abc ~* &* +@all"]
    expect(access.bind, fake_machine(client), Health.NOTE)
    expect(access.default_user, fake_machine(client), Health.OK)


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
    expect(persistence.disk, fake_machine(client, tmp_path, disk=lambda path: disk), status)


def test_remote_disk_is_skipped() -> None:
    remote = fake_machine(FakeClient(), url="redis://elsewhere")
    expect_skipped(persistence.disk, remote, "another machine")


def test_fix_uses_redis_local_conf() -> None:
    client = FakeClient({"config_file": "/etc/sluice/redis.conf"}, maxmemory_policy="allkeys-lru")
    fix = "to /etc/sluice/redis-local.conf"
    assert fix in finding_of(checks.eviction, fake_machine(client)).fix


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
    expect(access.socket, subject, Health.NOTE)
    path.chmod(stat.S_IRWXU)
    expect(access.socket, subject, Health.OK)
    expect_skipped(access.socket, fake_machine(client), "TCP")
