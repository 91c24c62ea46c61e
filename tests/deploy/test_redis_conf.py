"""redis.conf: every supported version starts with it, and the important settings are effective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.installer.redis_conf import redis_conf
from deploy.installer.redis_server import RedisServer
from tests.support.deploy.acl import InstalledRedis
from tests.support.servers import REAL, require_binary


def value(installed: InstalledRedis, name: str) -> Any:
    found: Any = installed.admin.config_get(name)
    return found[name]


def test_jobs_are_persisted_and_never_evicted(installed_redis: InstalledRedis) -> None:
    assert value(installed_redis, "appendonly") == "yes"
    assert value(installed_redis, "appendfsync") == "always"
    assert value(installed_redis, "aof-use-rdb-preamble") == "yes"
    assert value(installed_redis, "maxmemory-policy") == "noeviction"
    assert value(installed_redis, "maxmemory") == str(2 << 30)  # a quarter of 8 GB
    assert value(installed_redis, "stream-node-max-bytes") == "1024"


def test_only_the_group_can_connect(installed_redis: InstalledRedis) -> None:
    assert value(installed_redis, "port") == "0"
    assert installed_redis.socket.stat().st_mode & 0o777 == 0o770
    assert value(installed_redis, "protected-mode") == "yes"


def test_it_starts_without_warnings_about_its_settings(installed_redis: InstalledRedis) -> None:
    assert "Bad directive" not in installed_redis.log
    assert "ready to accept connections" in installed_redis.log.lower()


@pytest.mark.parametrize("kind", REAL)
def test_operator_settings_take_precedence(kind: str) -> None:
    installed = InstalledRedis(
        require_binary(kind), local="maxmemory 100mb\nappendfsync everysec\n"
    )
    try:
        assert value(installed, "maxmemory") == str(100 << 20)
        assert value(installed, "appendfsync") == "everysec"
    finally:
        installed.close()


def server(*version: int, notifies: bool = True) -> RedisServer:
    major, minor, patch = version
    return RedisServer(Path("/usr/bin/redis-server"), (major, minor, patch), notifies)


def test_newer_options_only_for_newer_servers() -> None:
    assert "shutdown-timeout" not in redis_conf(server(6, 2, 14), 0, 1 << 33)
    for version in ((7, 0, 15), (7, 2, 4), (8, 4, 0)):
        assert "shutdown-timeout" in redis_conf(server(*version), 0, 1 << 33)


def test_a_server_without_libsystemd_does_not_notify() -> None:
    assert "supervised systemd" in redis_conf(server(8, 4, 0), 0, 1 << 33)
    assert "supervised no" in redis_conf(server(8, 4, 0, notifies=False), 0, 1 << 33)


def test_a_port_is_on_loopback_only() -> None:
    text = redis_conf(server(7, 0, 15), 6390, 1 << 33)
    assert "port 6390\nbind 127.0.0.1 -::1\n" in text


def test_a_small_host_gets_the_minimum_memory() -> None:
    assert "maxmemory 64mb" in redis_conf(server(7, 0, 15), 0, 1 << 26)
