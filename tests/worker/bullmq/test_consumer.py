"""Taking jobs: order, delay, limits and concurrency; and a worker that stops."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import pytest

from sluice.worker.execution.context import JobContext
from sluice.worker.monitoring.shutdown import StopSignals
from tests.support.waiting import eventually
from tests.support.worker.bullmq import TIMEOUT_S, TRIES, Bull
from tests.support.worker.handlers import Gate, forever

pytestmark = pytest.mark.real_redis


def watched(bull: Bull, seconds: float = 0.0) -> Gate:
    """The handler of the jobs named `work`."""
    gate = Gate(seconds, held={"work"})
    bull.registry.add_named("work", gate)
    return gate


async def test_each_job_runs_once_and_never_more_than_slots(bull: Bull) -> None:
    gate = watched(bull, 0.002)
    consumer = bull.work(bullmq_concurrency=5)
    jobs = await bull.queue.addBulk([{"name": "work", "data": {}, "opts": {}} for _ in range(150)])
    await bull.ended(*(str(job.id) for job in jobs))
    assert sorted(gate.begun) == sorted(str(job.id) for job in jobs)
    assert gate.most == 5
    await consumer.slots.wait_idle(5)
    assert await bull.redis.llen(bull.keys.key("active")) == 0
    assert await bull.redis.keys(f"{bull.keys.key('')}*:lock") == []


async def test_jobs_run_in_order_and_before_prioritized_ones(bull: Bull) -> None:
    gate = watched(bull)
    low, high = await bull.add("work", priority=5), await bull.add("work", priority=1)
    plain, second = await bull.add("work"), await bull.add("work")
    also_high = await bull.add("work", priority=1)
    bull.work(bullmq_concurrency=1)
    await bull.ended(low)
    assert gate.begun == [plain, second, high, also_high, low]


async def test_a_delayed_job_begins_when_it_is_due(bull: Bull) -> None:
    began: dict[str, float] = {}

    @bull.registry.named("timed")
    async def timed(context: JobContext, data: Any) -> None:
        began[context.job_id] = time.time()

    bull.work()
    await bull.ended(await bull.add("timed"))  # idle from here on
    late_s: dict[int, list[float]] = {700: [], 250: []}
    for _ in range(TRIES):
        added = {delay: await bull.add("timed", delay=delay) for delay in late_s}
        await bull.ended(*added.values())
        for delay, job_id in added.items():
            due = (int((await bull.hash(job_id))["timestamp"]) + delay) / 1000
            late_s[delay].append(began[job_id] - due)
        if all(min(each) < 0.15 for each in late_s.values()):
            break
    assert all(-0.002 <= min(each) < 0.15 for each in late_s.values()), late_s


@pytest.mark.parametrize("of_the_queue", [False, True], ids=["worker", "queue"])
async def test_the_rate_limit_is_respected(bull: Bull, of_the_queue: bool) -> None:
    gate = watched(bull)
    ids = [await bull.add("work") for _ in range(5)]
    began = time.monotonic()
    if of_the_queue:
        await bull.redis.hset(bull.keys.meta, mapping={"max": 2, "duration": 300})
        bull.work(bullmq_drain_delay_s=30)
    else:
        bull.work(bullmq_rate_max=2, bullmq_rate_ms=300, bullmq_drain_delay_s=30)
    await bull.ended(*ids)
    assert 0.55 < time.monotonic() - began < 12
    assert len(gate.begun) == 5


async def test_global_concurrency_applies_to_all_workers(bull: Bull) -> None:
    gate = watched(bull, 0.05)
    await bull.redis.hset(bull.keys.meta, "concurrency", 1)
    ids = [await bull.add("work") for _ in range(6)]
    began = time.monotonic()
    bull.work(bullmq_worker_name="a", bullmq_drain_delay_s=30)
    bull.work(bullmq_worker_name="b", bullmq_drain_delay_s=30)
    await bull.ended(*ids)
    assert gate.most == 1
    assert time.monotonic() - began < 12


async def test_a_paused_queue_starts_nothing_until_it_is_resumed(bull: Bull) -> None:
    gate = watched(bull)
    bull.work(bullmq_drain_delay_s=30)
    await bull.ended(await bull.add("work"))
    await bull.queue.pause()
    waiting = await bull.add("work")
    await asyncio.sleep(0.2)
    assert len(gate.begun) == 1
    began = time.monotonic()
    await bull.queue.resume()
    await bull.ended(waiting)
    assert time.monotonic() - began < 12


async def test_nothing_is_taken_while_the_host_is_under_pressure(bull: Bull) -> None:
    gate = watched(bull)
    gate.open.clear()
    consumer = bull.work(bullmq_concurrency=1)
    first, second = await bull.add("work"), await bull.add("work")
    await bull.event(first, "active")
    consumer.slots.suspend("heat")
    gate.open.set()
    await bull.ended(first)
    await asyncio.sleep(0.1)
    assert gate.begun == [first]
    assert await bull.state(second) == "waiting"
    consumer.slots.resume("heat")
    await bull.ended(second)


async def test_node_recognises_the_worker_by_its_client_name(bull: Bull) -> None:
    bull.work(bullmq_worker_name="me")
    queue = base64.b64encode(bull.keys.queue.encode()).decode()

    async def is_there() -> bool:
        names = [client["name"] for client in await bull.redis.client_list()]
        return f"bull:{queue}:w:me" in names

    await eventually(is_there, TIMEOUT_S)


async def test_a_marker_popped_by_a_busy_worker_is_put_back(bull: Bull) -> None:
    """The pop began while a slot was free; then the last slot was taken."""
    gate, go = watched(bull), asyncio.Event()
    consumer = bull.work(bullmq_concurrency=1, bullmq_drain_delay_s=30)

    async def is_back() -> bool:
        return await bull.redis.zscore(bull.keys.marker, "0") is not None

    await eventually(lambda: consumer.reader._popping is not None, TIMEOUT_S)
    consumer.slots.start(go.wait())
    job_id = await bull.add("work")
    await eventually(lambda: consumer.reader._popping is None, TIMEOUT_S)
    await eventually(is_back, TIMEOUT_S)
    assert (consumer.slots.busy, gate.begun) == (1, [])
    go.set()
    await bull.ended(job_id)


# -- shutdown: running jobs finish with renewed locks, the rest is released --------------------


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
    await eventually(lambda: len(runs) == 2, TIMEOUT_S)
    stopping = asyncio.create_task(bull.stop())
    await asyncio.sleep(0)
    bull.work(bullmq_stalled_interval_ms=200)
    is_stopping.set()
    await stopping
    for found in await bull.ended(*ids):
        assert (found["returnvalue"], found["ats"]) == ("4", "1")
    assert sorted(runs) == sorted(ids)


async def test_a_stopping_worker_takes_nothing_more(bull: Bull) -> None:
    gate = watched(bull)
    gate.open.clear()
    bull.work(bullmq_concurrency=1)
    first, second = await bull.add("work"), await bull.add("work")
    await eventually(lambda: gate.begun == [first], TIMEOUT_S)
    stopping = asyncio.create_task(bull.stop())
    await asyncio.sleep(0.05)
    gate.open.set()
    await stopping
    assert gate.begun == [first]
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
    gate, consumer = watched(bull), bull.work()
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
    assert gate.begun == [job_id]
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
