"""Locks are renewed while a job runs; a lost lock, reply or connection ends no job twice."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis

from sluice.common.features.bullmq.scripts import COMPLETE
from sluice.worker.bullmq import main
from sluice.worker.bullmq.consumer import BullMQConsumer
from sluice.worker.errors import AttemptLost, JobError
from sluice.worker.execution.context import JobContext
from tests.support.servers import SYSTEM, Backend, RealServer, require_binary
from tests.support.waiting import eventually
from tests.support.worker.bullmq import TIMEOUT_S, TRIES, Bull, bull_on
from tests.support.worker.handlers import Gate, forever

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


# -- Redis restarts, or replies are lost -------------------------------------------------------


def lose_replies(consumer: BullMQConsumer, script: str, count: int) -> list[str]:
    """Lose the replies to the next `count` calls of a script."""
    client, lost = consumer.reader._client, []
    call = client.call
    scripts = consumer.reader._scripts
    wanted = (scripts._complete if script == COMPLETE else scripts._scripts[script]).sha

    async def losing(script_call: Any) -> Any:
        reply = await call(script_call)
        if script_call.script.sha == wanted and len(lost) < count:
            lost.append(script)
            raise redis.exceptions.ConnectionError("the answer was lost")
        return reply

    client.call = losing  # type: ignore[method-assign]
    return lost


async def test_a_completion_with_a_lost_reply_is_not_a_failure(bull: Bull) -> None:
    gate = Gate()
    bull.registry.add_named("work", gate)
    consumer = bull.work(bullmq_concurrency=1, **RARE)
    await bull.ended(await bull.add("work"))
    await bull.queue.pause()
    ids = [await bull.add("work") for _ in range(6)]
    lost = lose_replies(consumer, COMPLETE, 3)
    await bull.queue.resume()
    found = await bull.ended(*ids)
    assert [each["returnvalue"] for each in found] == ["1"] * 6
    assert len(lost) == 3  # each of them had locked the next job
    assert gate.begun[1:] == ids


async def test_a_job_locked_in_a_lost_reply_is_adopted(bull: Bull) -> None:
    gate = Gate()
    bull.registry.add_named("work", gate)
    consumer = bull.work(**RARE)
    await bull.ended(await bull.add("work"))
    lost = lose_replies(consumer, main.TAKE, 1)
    job_id = await bull.add("work")
    began = time.monotonic()
    await bull.ended(job_id)
    assert time.monotonic() - began < 12
    assert (lost, gate.begun[1:]) == ([main.TAKE], [job_id])


async def test_killed_connections_lose_nothing(bull: Bull) -> None:
    gate = Gate(0.005)
    bull.registry.add_named("work", gate)
    bull.work(bullmq_concurrency=5)
    jobs = await bull.queue.addBulk([{"name": "work", "data": {}, "opts": {}} for _ in range(100)])
    ids = [str(job.id) for job in jobs]
    for part in (10, 40, 70):
        await eventually(lambda part=part: len(gate.begun) > part, TIMEOUT_S)  # type: ignore[misc]
        await bull.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await bull.ended(*ids)
    assert sorted(gate.begun) == sorted(ids)


@pytest.mark.slow("restarts a server")
async def test_jobs_continue_within_a_second_after_a_restart_of_redis() -> None:
    runs: list[str] = []
    server = RealServer(require_binary(SYSTEM), durable=True)
    async for bull in bull_on(Backend(SYSTEM, server.url)):

        @bull.registry.named("slow")
        async def slow(context: JobContext, data: Any) -> str:
            runs.append(context.job_id)
            await asyncio.sleep(data["s"])
            return "done"

        bull.work(bullmq_lock_ms=8000, bullmq_lock_renew_ms=4000)
        took_s = []
        for _ in range(TRIES):
            runs.clear()
            during = await bull.add("slow", {"s": 0.5})
            await bull.event(during, "active")
            server.kill()
            await asyncio.sleep(1.0)  # it ends while Redis is down
            server.restart()
            began = time.monotonic()
            [found] = await bull.ended(during)
            assert found["returnvalue"] == '"done"'
            took_s.append(time.monotonic() - began)
            after = await bull.add("slow", {"s": 0.0})
            await bull.ended(after)
            assert runs == [during, after]
            if took_s[-1] < 3:
                break
        assert min(took_s) < 3
    server.close()
