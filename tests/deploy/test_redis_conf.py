"""redis.conf: every supported version starts with it, and the important settings are effective."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from deploy.installer.redis_conf import redis_conf
from deploy.installer.redis_server import RedisServer
from tests.support.deploy.acl import MEMORY_BYTES, InstalledRedis
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
