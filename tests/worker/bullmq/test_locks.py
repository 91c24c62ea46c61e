"""Locks are renewed while a job runs. A handler that loses its lock stops and writes nothing."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis

from tests.support.waiting import eventually
from tests.support.worker.bullmq import TIMEOUT_S, Bull
from tests.support.worker.handlers import Gate, forever
from worker.errors import AttemptLost, JobError
from worker.execution.context import JobContext

pytestmark = pytest.mark.real_redis

#: Locks that are not renewed during a test.
RARE = {"bullmq_lock_ms": 60_000, "bullmq_lock_renew_ms": 30_000}
BUSY = {"bullmq_lock_renew_ms": 100, "bullmq_stalled_interval_ms": 200}


async def test_a_handler_that_blocks_the_loop_keeps_its_lock(bull: Bull) -> None:
    runs: list[int] = []

    async def blocks(context: JobContext, data: Any) -> int:
        runs.append(1)
        client: Any = redis.Redis.from_url(bull.url)
        lock, until, renewed = bull.keys.lock(context.job_id), time.monotonic() + TIMEOUT_S, 0
        left_ms = client.pttl(lock)
        while renewed < 4 and time.monotonic() < until:  # never awaits
            before_ms, left_ms = left_ms, client.pttl(lock)
            renewed += left_ms > before_ms
        client.close()
        return renewed

    bull.work(**BUSY)
    found = await bull.run(blocks)
    assert (found["returnvalue"], runs) == ("4", [1])


async def test_a_lost_lock_stops_the_handler_and_nothing_is_written(bull: Bull) -> None:
    stopped = asyncio.Event()

    @bull.registry.named("loses")
    async def loses(context: JobContext, data: Any) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise
        return "wrong"

    consumer = bull.work(**{**BUSY, "bullmq_stalled_interval_ms": 60_000})
    job_id = await bull.add("loses")
    await bull.event(job_id, "active")
    await bull.redis.set(bull.keys.lock(job_id), "another worker")
    before = await bull.hash(job_id)
    await asyncio.wait_for(stopped.wait(), TIMEOUT_S)
    await consumer.slots.wait_idle(5)
    assert await bull.hash(job_id) == before
    assert await bull.state(job_id) == "active"
    assert await bull.event_types(job_id) == ["added", "waiting", "active"]
    assert consumer.locks.lost == 1


async def test_progress_after_a_lost_lock_is_not_written(bull: Bull) -> None:
    heard: list[BaseException] = []

    @bull.registry.named("reports")
    async def reports(context: JobContext, data: Any) -> None:
        await bull.redis.set(bull.keys.lock(context.job_id), "another worker")
        try:
            for percent in range(100):
                await context.progress(percent)
                await asyncio.sleep(0.01)
        except BaseException as error:
            heard.append(error)
            raise

    consumer = bull.work(**RARE)
    job_id = await bull.add("reports")
    await eventually(lambda: heard, TIMEOUT_S)
    await consumer.slots.wait_idle(10)
    # The write is refused, unless the keeper, which renews after subscribing, was first.
    assert [type(error).__name__ for error in heard] in (["AttemptLost"], ["CancelledError"])
    assert consumer.locks.lost == 1 or type(heard[0]) is AttemptLost
    assert "progress" not in await bull.hash(job_id)


async def test_a_running_job_is_canceled_by_message(bull: Bull) -> None:
    began = asyncio.Event()

    @bull.registry.named("endless")
    async def endless(context: JobContext, data: Any) -> None:
        began.set()
        await context.wait_for_cancel()

    bull.work(**RARE)
    job_id = await bull.add("endless", attempts=3)
    await asyncio.wait_for(began.wait(), TIMEOUT_S)
    while not await bull.redis.publish(bull.keys.control, job_id):
        await asyncio.sleep(0.01)
    [found] = await bull.ended(job_id)
    assert (found["failedReason"], found["atm"]) == ("cancelled", "1")


async def test_after_a_missed_message_the_renewal_reports_the_cancel(bull: Bull) -> None:
    bull.registry.add_named("endless", forever)
    bull.work(**BUSY, cancel_grace_s=0.05)
    job_id = await bull.add("endless")
    await bull.event(job_id, "active")
    await bull.redis.set(bull.keys.cancel(job_id), "1", ex=60)
    [found] = await bull.ended(job_id)
    assert found["failedReason"] == "cancelled"
    assert not await bull.redis.exists(bull.keys.cancel(job_id))


@pytest.mark.parametrize("max_stalled", [1, 0])
async def test_a_job_whose_worker_died_is_run_again(bull: Bull, max_stalled: int) -> None:
    """A job that stalls too often fails without being run."""
    gate = Gate()
    bull.registry.add_named("again", gate)
    job_id = await bull.add("again", priority=1, attempts=5)
    await _take_and_die(bull, job_id)
    bull.work(**BUSY, bullmq_max_stalled=max_stalled)
    [found] = await bull.ended(job_id)
    if max_stalled:
        assert (await bull.event(job_id, "stalled"))["jobId"] == job_id
        assert (found["stc"], found["atm"], found["ats"]) == ("1", "1", "2")
        assert (found["returnvalue"], gate.begun) == ("1", [job_id])
    else:
        assert found["failedReason"] == "job stalled more than allowable limit"
        assert gate.begun == []


async def test_after_a_lost_job_the_next_one_is_still_taken(bull: Bull) -> None:
    @bull.registry.named("fails")
    async def fails(context: JobContext, data: Any) -> None:
        if data.get("lose"):
            await bull.redis.delete(bull.keys.lock(context.job_id))
        raise JobError("no")

    bull.work(bullmq_concurrency=1, **RARE)
    await bull.add("fails", {"lose": True})
    assert (await bull.run(name="fails"))["failedReason"] == "no"


async def _take_and_die(bull: Bull, job_id: str) -> None:
    """Leave the state of a worker that was killed during a job."""
    await bull.redis.zrem(bull.keys.key("prioritized"), job_id)
    await bull.redis.lrem(bull.keys.key("wait"), 1, job_id)
    await bull.redis.lpush(bull.keys.key("active"), job_id)
    await bull.redis.hincrby(bull.keys.job(job_id), "ats", 1)
