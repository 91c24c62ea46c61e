"""Selection of the Redis, and masking of its password."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.ops.redis_target import RedisTarget, find_target, mask_password
from tests.ops.doctor.machines import write


def test_precedence_of_sources(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    environ = {"SLUICE_DATA_DIR": str(data)}
    assert find_target(None, environ, root) is None
    write(data, "redis/users.lock")
    assert find_target(None, environ, root) is None  # it is not running
    write(data, "redis/redis.sock")
    private = find_target(None, environ, root)
    assert private is not None
    assert private.is_private
    assert private.url == f"unix://{data}/redis/redis.sock"
    write(root, "/etc/sluice/credentials/admin.redis_url", "unix://admin:pw@/s\n")
    assert find_target(None, environ, root) == RedisTarget(
        "unix://admin:pw@/s", "/etc/sluice/credentials/admin.redis_url"
    )
    write(tmp_path, "credentials/redis_url", "unix:///credential\n")
    environ["CREDENTIALS_DIRECTORY"] = str(tmp_path / "credentials")
    assert find_target(None, environ, root) == RedisTarget(
        "unix:///credential", "the credential redis_url"
    )
    environ["REDIS_URL"] = "redis://there"
    assert find_target(None, environ, root) == RedisTarget("redis://there", "REDIS_URL")
    assert find_target("redis://here", environ, root) == RedisTarget("redis://here", "--redis")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://user:hunter2@host:1/0", "redis://user:***@host:1/0"),
        ("redis://:hunter2@host", "redis://:***@host"),
        ("redis://user:hunter2@x@host", "redis://user:***@host"),
        ("unix://admin:hunter2@/run/s.sock", "unix://admin:***@/run/s.sock"),
        ("unix:///s?db=0&password=hunter2&x=1", "unix:///s?db=0&password=***&x=1"),
        ("rediss://h/0?PASSWORD=hunter2", "rediss://h/0?PASSWORD=***"),
        ("hunter2", "(not a URL)"),
    ],
)
def test_passwords_are_masked(url: str, shown: str) -> None:
    assert mask_password(url) == shown
    assert "hunter2" not in RedisTarget(url, "").cli


@pytest.mark.parametrize(
    ("url", "command"),
    [
        ("redis://localhost:6379/0", "redis-cli"),
        ("redis://10.0.0.5:7000", "redis-cli -h 10.0.0.5 -p 7000"),
        ("rediss://u:p@h", "redis-cli -h h --tls --user u --askpass"),
        ("unix:///run/s.sock", "redis-cli -s /run/s.sock"),
        ("unix:///a%20b?password=x", "redis-cli -s '/a b' --askpass"),
        ("unix://admin:pw@/run/s.sock", "redis-cli -s /run/s.sock --user admin --askpass"),
    ],
)
def test_redis_cli_command(url: str, command: str) -> None:
    assert RedisTarget(url, "").cli == command


def test_is_local() -> None:
    for url in ("unix:///s", "redis://localhost", "redis://127.0.0.1:1", "redis://[::1]:1"):
        assert RedisTarget(url, "").is_local
    assert not RedisTarget("redis://elsewhere", "").is_local
