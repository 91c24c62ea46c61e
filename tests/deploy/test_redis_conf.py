"""redis.conf of Redis and Valkey: every version starts with it, and its settings are effective."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from deploy.installer import redis_server
from deploy.installer.archive import Contents
from deploy.installer.errors import Unsuitable
from deploy.installer.redis_conf import redis_conf
from deploy.installer.redis_server import RedisServer
from deploy.installer.restore import _check_version
from sluice.common.version import REDIS, VALKEY
from tests.support.deploy.acl import MEMORY_BYTES, InstalledRedis
from tests.support.deploy.fake_machine import FakeMachine, fake_redis
from tests.support.servers import REAL, require_binary

EFFECTIVE = {
    "appendonly": "yes",
    "appendfsync": "always",
    "aof-use-rdb-preamble": "yes",
    "maxmemory-policy": "noeviction",
    "maxmemory": str(2 << 30),  # a quarter of 8 GB
    "stream-node-max-bytes": "1024",
    "port": "0",
    "protected-mode": "yes",
}


def values(installed: InstalledRedis, names: Iterable[str]) -> dict[str, str]:
    return {name: installed.admin.config_get(name)[name] for name in names}


def test_jobs_are_safe_and_only_the_group_can_connect(installed_redis: InstalledRedis) -> None:
    assert values(installed_redis, EFFECTIVE) == EFFECTIVE
    assert installed_redis.socket.stat().st_mode & 0o777 == 0o770
    assert "Bad directive" not in installed_redis.log
    assert "ready to accept connections" in installed_redis.log.lower()


@pytest.mark.parametrize("kind", REAL)
def test_operator_settings_take_precedence(kind: str) -> None:
    own = "maxmemory 100mb\nappendfsync everysec\n"
    installed = InstalledRedis(require_binary(kind), local=own)
    try:
        expected = {"maxmemory": str(100 << 20), "appendfsync": "everysec"}
        assert values(installed, expected) == expected
    finally:
        installed.close()


def conf(
    *version: int, notifies: bool = True, port: int = 0, memory_bytes: int = MEMORY_BYTES
) -> str:
    major, minor, patch = version
    server = RedisServer(Path("/usr/bin/redis-server"), (major, minor, patch), notifies)
    return redis_conf(server, port, memory_bytes)


def test_settings_depend_on_server_and_host() -> None:
    assert "shutdown-timeout" not in conf(6, 2, 14)
    for version in ((7, 0, 15), (7, 2, 4), (8, 4, 0)):
        assert "shutdown-timeout" in conf(*version)
    assert "supervised systemd" in conf(8, 4, 0)
    assert "supervised no" in conf(8, 4, 0, notifies=False)  # without libsystemd
    assert "port 6390\nbind 127.0.0.1 -::1\n" in conf(7, 0, 15, port=6390)
    assert "maxmemory 64mb" in conf(7, 0, 15, memory_bytes=1 << 26)


# -- valkey-server instead of redis-server -----------------------------------------------------


def fake_valkey(path: Path) -> Path:
    return fake_redis(path, "9.1.0", product=VALKEY)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, the only one on the PATH."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setattr(redis_server, "DEFAULT_PATHS", ())
    return directory


def test_valkey_is_installed_if_there_is_no_redis(machine: FakeMachine, path: Path) -> None:
    binary = fake_valkey(path / "valkey-server")
    assert machine.install() == 0
    assert f"Valkey 9.1.0 at {binary}" in machine.output
    manifest = json.loads(machine.layout.manifest.read_text())
    assert (manifest["redis_product"], manifest["redis_version"]) == (VALKEY, "9.1.0")
    drop_in = (machine.layout.units / "redis.service.d" / "50-install.conf").read_text()
    assert f"ExecStart={binary} /etc/sluice/redis.conf\n" in drop_in
    assert "for Valkey 9.1.0" in machine.layout.redis_conf.read_text()
    assert "supervised systemd" in machine.layout.redis_conf.read_text()
    acl = machine.layout.users_acl.read_text()
    assert "client|setinfo" in acl
    assert "vsim" not in acl
    machine.install()
    assert "no changes" in machine.output
    machine.run("status")
    assert f"redis     Valkey 9.1.0 at {binary}" in machine.output


@pytest.mark.parametrize(
    ("redis_version", "product"), [("7.0.15", REDIS), ("6.2.0", REDIS), ("6.0.16", VALKEY)]
)
def test_redis_is_preferred_if_it_is_new_enough(
    path: Path, redis_version: str, product: str
) -> None:
    fake_redis(path / "redis-server", redis_version)
    fake_valkey(path / "valkey-server")
    assert redis_server.find(None).product == product


def test_valkey_is_found_in_the_usual_directories() -> None:
    names = [f"{directory}/redis-server" for directory in ("/usr/bin", "/usr/local/bin")]
    others = [name.replace("redis", "valkey") for name in names]
    assert list(redis_server.DEFAULT_PATHS) == names + others


def test_data_of_the_other_product_is_refused(machine: FakeMachine, tmp_path: Path) -> None:
    """Neither can read the files of the other if these are newer than version 7.2."""
    newer = fake_redis(tmp_path / "redis-8", "8.6.0")
    assert machine.install("--redis-server", newer) == 0
    data = machine.layout.redis_data / "appendonlydir"
    data.mkdir()
    valkey = fake_valkey(tmp_path / "valkey-server")
    assert machine.install("--redis-server", valkey) == 78
    assert "was written by Redis 8.6.0" in machine.error
    assert "Use --redis-server with Redis, or move" in machine.error
    data.rmdir()
    assert machine.install("--redis-server", valkey) == 0


@pytest.mark.parametrize(("product", "other"), [(REDIS, VALKEY), (VALKEY, REDIS)])
def test_a_backup_of_the_other_product_is_refused(product: str, other: str) -> None:
    server = RedisServer(Path("/usr/bin/server"), (9, 1, 0), True, product=product)
    for version, writer in (("9.0.2", product), ("7.2.4", other)):
        _check_version(Contents("", "", version, 0, redis_product=writer), server)
    with pytest.raises(Unsuitable, match=f"of {other} 9.0.2; this host has {product} 9.1.0"):
        _check_version(Contents("", "", "9.0.2", 0, redis_product=other), server)


def test_old_backups_are_of_redis() -> None:
    assert str(Contents("", "", "7.0.15", 0).redis_release) == "Redis 7.0.15"
