"""The Redis users of the installer: checks without permission are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.installer.layout import ADMIN, GATEWAY, WORKER
from sluice.common.contracts.jobs import JobKeys
from sluice.ops.doctor.checks import CHECKS
from sluice.ops.doctor.finding import Finding, Health
from sluice.ops.doctor.redis_server import RedisServer
from sluice.ops.doctor.runner import run_checks
from sluice.ops.redis_target import RedisTarget
from tests.ops.doctor.machines import make_machine
from tests.support.deploy.acl import InstalledRedis
from tests.support.servers import REAL, require_binary

KEYS = JobKeys()
ABOUT_REDIS = tuple(check for check in CHECKS if check.family in ("redis", "queue"))


@pytest.fixture(scope="module", params=REAL)
def installed(request: Any) -> Iterator[InstalledRedis]:
    """A server as the installer configures it, and a queue with a group and a job."""
    installed = InstalledRedis(require_binary(request.param))
    installed.admin.xgroup_create(KEYS.queue, "workers", id="0", mkstream=True)
    installed.admin.xadd(KEYS.queue, {"job_id": "a", "task": "chat", "payload": "{}"})
    yield installed
    installed.close()


def findings(installed: InstalledRedis, role: str) -> dict[str, Finding]:
    redis = RedisServer(RedisTarget(installed.url(role), "--redis"))
    found = run_checks(make_machine(Path("/"), redis=redis), ABOUT_REDIS)
    return {finding.check: finding for finding in found}


def test_administrator_can_run_all_checks(installed: InstalledRedis) -> None:
    found = findings(installed, ADMIN)
    skipped = {name for name, each in found.items() if each.status is Health.SKIPPED}
    assert skipped == {"queue.versions", "redis.partitions"}  # no worker, no version; one partition
    assert found["redis.default_user"].seen == "the default user is disabled"


@pytest.mark.parametrize("role", [GATEWAY, WORKER])
def test_other_users_skip_checks(installed: InstalledRedis, role: str) -> None:
    found = findings(installed, role)
    assert found["redis.reachable"].status is Health.OK
    assert found["redis.version"].status is Health.OK
    assert found["redis.append_only"].status is Health.SKIPPED
    assert found["queue.backlog"].status is Health.OK
    for name in ("queue.group", "queue.consumers"):
        assert found[name].status in (Health.OK, Health.SKIPPED), found[name]
    # The only problem: no worker is running.
    wrong = {name for name, each in found.items() if each.status in (Health.WARN, Health.FAIL)}
    assert wrong <= {"queue.workers", "redis.latency"}
