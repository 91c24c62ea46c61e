"""Order, delay, limits and concurrency of taking jobs."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import pytest

from tests.support.waiting import eventually
from tests.support.worker.bullmq import TIMEOUT_S, TRIES, Bull
from tests.support.worker.handlers import Gate
from worker.execution.context import JobContext

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
