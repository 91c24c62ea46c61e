"""Each installed credential has only the Redis permissions that its service needs."""

from __future__ import annotations

import pytest

from tests.deploy.test_acl import (
    DELETES,
    DENIALS,
    NEITHER_MAY,
    READS,
    TAKES,
    Command,
    commands,
    in_script,
)
from tests.system.machine import Machine
from tests.system.sluice import redis_lines, run_job

WORKER_MAY_NOT = commands("SET idempotency:foo x; HSET access:keys a b")
AS_NOBODY = "setpriv --reuid nobody --regid nogroup --clear-groups"


@pytest.fixture(scope="module", autouse=True)
def _data(machine: Machine) -> None:
    """Creates data that must be protected."""
    run_job(machine)


@pytest.mark.parametrize(
    ("role", "refused"),
    [("gateway", NEITHER_MAY + READS + DELETES + TAKES), ("worker", NEITHER_MAY + WORKER_MAY_NOT)],
)
def test_a_service_may_not_run_other_commands(
    machine: Machine, role: str, refused: list[Command]
) -> None:
    tried = [*refused, *(in_script(*command) for command in refused)]
    allowed = [
        f"{' '.join(command)}: {answer}"
        for command, answer in zip(tried, redis_lines(machine, role, tried))
        if not any(words in answer for words in ("NoPermissionError", *DENIALS))
    ]
    assert allowed == []


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("redis-cli -s /run/sluice/redis.sock PING", "noauth"),
        ("redis-cli -h 127.0.0.1 PING", "refused"),
        (f"{AS_NOBODY} redis-cli -s /run/sluice/redis.sock PING", "denied"),
        (f"{AS_NOBODY} cat /etc/sluice/credentials/gateway.redis_url", "denied"),
        (f"{AS_NOBODY} cat /etc/sluice/users.acl", "denied"),
        (f"{AS_NOBODY} ls /var/lib/sluice/redis", "denied"),
    ],
)
def test_redis_is_only_for_the_services(machine: Machine, command: str, error: str) -> None:
    result = machine.run(command, code=None)
    assert error in (result.stdout + result.stderr).lower(), result
