"""Each installed credential has only the Redis permissions that its service needs."""

from __future__ import annotations

import pytest

from tests.system.machine import Machine
from tests.system.sluice import post, redis_as, redis_lines, wait_until

FORBIDDEN_TO_BOTH = [
    ("KEYS", "*"),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "default", "on", "nopass"),
    ("SHUTDOWN",),
    ("DEBUG", "SLEEP", "0"),
    ("MODULE", "LIST"),
    ("CLIENT", "LIST"),
    ("MONITOR",),
    ("SET", "foo", "1"),
    ("GET", "foo"),
    ("EVAL", "return redis.call('FLUSHALL')", "0"),
    ("EVAL", "return redis.call('KEYS', '*')", "0"),
    ("EVAL", "return redis.call('SET', KEYS[1], '1')", "1", "foo"),
]
FORBIDDEN_TO_GATEWAY = [
    ("XRANGE", "jobs:stream", "-", "+"),
    ("XREVRANGE", "jobs:stream", "+", "-"),
    ("XREAD", "STREAMS", "jobs:stream", "0"),
    ("XREADGROUP", "GROUP", "workers", "me", "STREAMS", "jobs:stream", ">"),
    ("XAUTOCLAIM", "jobs:stream", "workers", "me", "0", "0"),
    ("EVAL", "return redis.call('XRANGE', KEYS[1], '-', '+')", "1", "jobs:stream"),
    ("DEL", "jobs:stream"),
]
FORBIDDEN_TO_WORKER = [
    ("SET", "idempotency:foo", "1"),
    ("HSET", "access:keys", "a", "b"),
]


AS_NOBODY = "setpriv --reuid nobody --regid nogroup --clear-groups"


@pytest.fixture(scope="module", autouse=True)
def _data(machine: Machine) -> None:
    """Creates data that must be protected."""
    wait_until(machine, post(machine)["job_id"], "done")


@pytest.mark.parametrize(
    ("role", "commands"),
    [
        ("gateway", FORBIDDEN_TO_BOTH + FORBIDDEN_TO_GATEWAY),
        ("worker", FORBIDDEN_TO_BOTH + FORBIDDEN_TO_WORKER),
    ],
)
def test_a_service_may_not_run_other_commands(
    machine: Machine, role: str, commands: list[tuple[str, ...]]
) -> None:
    answers = redis_lines(machine, role, commands)
    refused = ("NoPermissionError", "can't run this command", "can't access", "not allowed")
    allowed = [
        f"{' '.join(command)}: {answer}"
        for command, answer in zip(commands, answers)
        if not any(word in answer for word in refused)
    ]
    assert allowed == []


def test_redis_requires_a_password(machine: Machine) -> None:
    result = machine.run("redis-cli -s /run/sluice/redis.sock PING", code=None)
    assert "NOAUTH" in result.stdout + result.stderr


def test_redis_listens_on_no_port(machine: Machine) -> None:
    result = machine.run("redis-cli -h 127.0.0.1 PING", code=None)
    assert "refused" in result.stdout + result.stderr


def test_other_users_cannot_reach_the_socket_or_the_credentials(machine: Machine) -> None:
    for command in (
        "redis-cli -s /run/sluice/redis.sock PING",
        "cat /etc/sluice/credentials/gateway.redis_url",
        "cat /etc/sluice/users.acl",
        "ls /var/lib/sluice/redis",
    ):
        result = machine.run(
            f"setpriv --reuid nobody --regid nogroup --clear-groups {command}", code=None
        )
        assert "denied" in (result.stdout + result.stderr).lower(), result


def test_settings_that_keep_jobs_safe(machine: Machine) -> None:
    for setting, value in (
        ("appendonly", "yes"),
        ("maxmemory-policy", "noeviction"),
        ("stream-node-max-bytes", "1024"),
    ):
        assert value in redis_as(machine, "admin", "CONFIG", "GET", setting)
