"""Shutdown: running jobs finish with renewed locks, the rest is released."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.support.waiting import eventually
from tests.support.worker.bullmq import TIMEOUT_S, Bull
from tests.support.worker.handlers import forever
from worker.execution.context import JobContext
from worker.monitoring.shutdown import StopSignals

pytestmark = pytest.mark.real_redis


async def until_begun(runs: list[str], count: int) -> None:
    """A job that is active in Redis may not have reached its worker yet."""
    await eventually(lambda: len(runs) == count, TIMEOUT_S)


async def test_running_jobs_finish_under_locks_that_are_renewed(bull: Bull) -> None:
    runs: list[str] = []
    is_stopping = asyncio.Event()

    @bull.registry.named("long")
    async def long(context: JobContext, data: Any) -> int:
        runs.append(context.job_id)
        await is_stopping.wait()
        lock, until, renewed = bull.keys.lock(context.job_id), time.monotonic() + TIMEOUT_S, 0
        left_ms = await bull.redis.pttl(lock)
        while renewed < 4 and time.monotonic() < until:
            await asyncio.sleep(0.02)
            before_ms, left_ms = left_ms, await bull.redis.pttl(lock)
            renewed += left_ms > before_ms
        return renewed

    bull.work(bullmq_lock_renew_ms=100)
    ids = [await bull.add("long"), await bull.add("long")]
    await until_begun(runs, 2)
    stopping = asyncio.create_task(bull.stop())
    await asyncio.sleep(0)
    bull.work(bullmq_stalled_interval_ms=200)
    is_stopping.set()
    await stopping
    for found in await bull.ended(*ids):
        assert (found["returnvalue"], found["ats"]) == ("4", "1")
    assert sorted(runs) == sorted(ids)


async def test_a_stopping_worker_takes_nothing_more(bull: Bull) -> None:
    release = asyncio.Event()
    runs: list[str] = []

    @bull.registry.named("waits")
    async def waits(context: JobContext, data: Any) -> None:
        runs.append(context.job_id)
        await release.wait()

    bull.work(bullmq_concurrency=1)
    first, second = await bull.add("waits"), await bull.add("waits")
    await until_begun(runs, 1)
    stopping = asyncio.create_task(bull.stop())
    await asyncio.sleep(0.05)
    release.set()
    await stopping
    assert runs == [first]
    assert await bull.state(second) == "waiting"


async def test_unfinished_jobs_are_released_without_an_attempt(bull: Bull) -> None:
    patient = asyncio.Event()

    @bull.registry.named("endless")
    async def endless(context: JobContext, data: Any) -> int:
        if not patient.is_set():
            await asyncio.sleep(60)
        return context.attempt

    bull.work(bullmq_shutdown_grace_s=0.1)
    ids = [await bull.add("endless"), await bull.add("endless", priority=2)]
    for job_id in ids:
        await bull.event(job_id, "active")
    await bull.stop()
    assert [await bull.state(job_id) for job_id in ids] == ["waiting", "prioritized"]
    patient.set()
    bull.work()
    for found in await bull.ended(*ids):
        assert (found["returnvalue"], found["atm"], found["ats"]) == ("1", "1", "2")


async def test_an_idle_worker_takes_a_released_prioritized_job_at_once(bull: Bull) -> None:
    runs: list[str] = []
    began_once = asyncio.Event()

    @bull.registry.named("endless")
    async def endless(context: JobContext, data: Any) -> None:
        runs.append(context.job_id)
        if len(runs) == 1:
            began_once.set()
            await asyncio.sleep(60)

    consumer = bull.work(bullmq_shutdown_grace_s=0.0)
    job_id = await bull.add("endless", priority=2)
    await began_once.wait()
    bull.work(bullmq_drain_delay_s=30)
    await asyncio.sleep(0.1)  # by now it waits for a marker
    began = time.monotonic()
    await bull.workers[0].drain(StopSignals())
    await bull.ended(job_id)
    assert time.monotonic() - began < 12
    assert consumer.counters.for_task("endless").released == 1


async def test_a_job_locked_while_stopping_is_released_without_running(bull: Bull) -> None:
    runs: list[str] = []

    @bull.registry.named("work")
    async def work(context: JobContext, data: Any) -> None:
        runs.append(context.job_id)

    consumer = bull.work()
    job_id = await bull.add("work")
    await bull.ended(job_id)
    ask = consumer.reader._client.call

    async def call_and_stop(call: Any) -> Any:
        reply = await ask(call)
        consumer.reader._stopping = True  # set during the call
        return reply

    consumer.reader._client.call = call_and_stop  # type: ignore[method-assign]
    late = await bull.add("work")
    await bull.event(late, "active")

    async def is_back() -> bool:
        return await bull.state(late) == "waiting"

    await eventually(is_back, TIMEOUT_S)
    assert runs == [job_id]
    await bull.stop()


async def test_a_second_signal_releases_at_once(bull: Bull) -> None:
    bull.registry.add_named("endless", forever)
    bull.work(bullmq_shutdown_grace_s=60)
    job_id = await bull.add("endless")
    await bull.event(job_id, "active")
    signals = StopSignals()
    draining = asyncio.create_task(bull.workers[0].drain(signals))
    signals.force_requested.set()
    await asyncio.wait_for(draining, TIMEOUT_S)
    assert await bull.state(job_id) == "waiting"
