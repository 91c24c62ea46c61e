"""The Redis users of the installer: checks without permission are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.contracts.jobs import JobKeys
from deploy.installer.acl import users_acl
from deploy.installer.layout import ADMIN, GATEWAY, REDIS_ROLES, WORKER
from deploy.installer.redis_server import find
from ops.doctor.checks import CHECKS
from ops.doctor.finding import Finding, Health
from ops.doctor.machine import Machine
from ops.doctor.redis_server import RedisServer
from ops.doctor.runner import run_checks
from ops.redis_target import RedisTarget
from tests.ops.doctor.machines import make_machine
from tests.support.servers import REAL, RealServer, require_binary

KEYS = JobKeys()
#: As in the installer's redis.conf.
PUBSUB = ("--acl-pubsub-default", "resetchannels")
ABOUT_REDIS = tuple(check for check in CHECKS if check.family in ("redis", "queue"))


@pytest.fixture(params=REAL)
def server(request: Any, tmp_path: Path) -> Iterator[RealServer]:
    """A server with the users of the installer, and a queue with a group and a job."""
    binary = require_binary(request.param)
    acl = users_acl(find(Path(binary)), KEYS, dict.fromkeys(REDIS_ROLES, "pw"))
    server = RealServer(binary, "--appendonly", "yes", "--unixsocketperm", "700", *PUBSUB)
    client: Any = server.client
    client.xgroup_create(KEYS.queue, "workers", id="0", mkstream=True)
    client.xadd(KEYS.queue, {"job_id": "a", "task": "chat", "payload": "{}"})
    for line in acl.splitlines():
        if line.startswith("user "):
            client.execute_command("ACL", "SETUSER", *_rules(line))
    yield server
    server.close()


def _rules(line: str) -> list[str]:
    """The words of an ACL line; a selector in parentheses is one word."""
    words: list[str] = []
    for word in line.split()[1:]:
        if words and words[-1].startswith("(") and not words[-1].endswith(")"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


def machine_for(server: RealServer, role: str) -> Machine:
    target = RedisTarget(f"unix://{role}:pw@{server.dir}/s", "--redis")
    return make_machine(Path("/"), redis=RedisServer(target))


def findings(server: RealServer, role: str) -> dict[str, Finding]:
    return {each.check: each for each in run_checks(machine_for(server, role), ABOUT_REDIS)}


def test_administrator_can_run_all_checks(server: RealServer) -> None:
    found = findings(server, ADMIN)
    skipped = {name for name, each in found.items() if each.status is Health.SKIPPED}
    assert skipped == {"queue.versions", "redis.partitions"}  # no worker, no version; one partition
    assert found["redis.default_user"].seen == "the default user is disabled"


@pytest.mark.parametrize("role", [GATEWAY, WORKER])
def test_other_users_skip_checks(server: RealServer, role: str) -> None:
    found = findings(server, role)
    assert found["redis.reachable"].status is Health.OK
    assert found["redis.version"].status is Health.OK
    assert found["redis.append_only"].status is Health.SKIPPED
    assert found["queue.backlog"].status is Health.OK
    for name in ("queue.group", "queue.consumers"):
        assert found[name].status in (Health.OK, Health.SKIPPED), found[name]
    # The only problem: no worker is running.
    wrong = {name for name, each in found.items() if each.status in (Health.WARN, Health.FAIL)}
    assert wrong <= {"queue.workers", "redis.latency"}
