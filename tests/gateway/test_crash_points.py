"""A gateway that dies around a change: the job is complete or absent, and a retry is safe."""

from __future__ import annotations

import pytest

from sluice.common.process.crashpoints import CrashPoint
from tests.gateway.conftest import Crash, Died
from tests.gateway.jobs.test_cancel import cancel, events
from tests.support.gateway.harness import CHAT, Gateway

pytestmark = pytest.mark.fakeredis_only

KEYED = {"idempotency-key": "k"}
BODIES = [CHAT, {**CHAT, "delay_s": 60, "max_attempts": 2}]


@pytest.mark.parametrize("body", BODIES)
async def test_a_crash_before_the_enqueue_leaves_nothing(
    gateway: Gateway, crash_at: Crash, body: object
) -> None:
    crash_at(CrashPoint.BEFORE_ENQUEUE)
    with pytest.raises(Died):
        await gateway.client.post(body, KEYED)
    assert await gateway.redis.dbsize() == 0
    assert (await gateway.client.post(body, KEYED)).header("idempotent-replayed") is None


@pytest.mark.parametrize("body", BODIES)
async def test_after_a_crash_past_the_enqueue_a_retry_is_replayed(
    gateway: Gateway, crash_at: Crash, body: object
) -> None:
    crash_at(CrashPoint.AFTER_ENQUEUE)
    with pytest.raises(Died):
        await gateway.client.post(body, KEYED)
    before = await gateway.snapshot()
    answer = await gateway.client.post(body, KEYED)
    assert (answer.status, answer.header("idempotent-replayed")) == (202, "true")
    assert await gateway.snapshot() == before
    assert len(await gateway.redis.keys("job:*:events")) == 1


@pytest.mark.parametrize("point", [CrashPoint.BEFORE_CANCEL, CrashPoint.AFTER_CANCEL])
async def test_after_a_crash_around_a_cancel_a_retry_succeeds(
    gateway: Gateway, crash_at: Crash, point: CrashPoint
) -> None:
    job_id = await gateway.create()
    crash_at(point)
    with pytest.raises(Died):
        await cancel(gateway, job_id, {"reason": "r"})
    answer = await cancel(gateway, job_id, {"reason": "r"})
    assert (answer.status, answer.json()["status"]) == (200, "canceled")
    kinds = [(kind, data) for kind, _, data in await events(gateway, job_id)]
    assert kinds == [("queued", {}), ("canceled", {"reason": "r"})]
