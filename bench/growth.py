"""Cost per job against the number of waiting jobs; it must be flat."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.drain import drain, start_sluice
from bench.jobs import PAYLOAD, TTL_S, create_group, make_batch
from bench.scale import Scale
from bench.server import BenchRedis
from sluice.common.contracts.jobs import WORKER_GROUP, JobKeys, Task
from sluice.common.errors import QueueFull
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.jobs.store import JobStore, NewJob
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.connection import async_client
from sluice.common.redis.pipelined import PipelinedConnection

_NO_LIMIT = 1_000_000_000
_CONCURRENCY = 64
_WARMUP_TAG, _BACKLOG_TAG = 1, 2


@dataclass(frozen=True)
class Cost:
    """Microseconds per job with a given number of waiting jobs."""

    backlog: int
    worker_cpu_us: float
    redis_cpu_us: float
    enqueue_us: float
    #: A POST that is refused because the queue is full.
    refuse_us: float


def measure(redis: BenchRedis, scale: Scale, backlog: int) -> Cost:
    """Enqueues on top of a backlog, then with a full queue, then drains all jobs."""
    batch = make_batch(backlog, _BACKLOG_TAG)
    redis.clear()
    create_group(redis.pipe)
    redis.pipe.push(batch.packed)
    enqueue_us, refuse_us = asyncio.run(_enqueue(redis.url, scale.enqueues))
    warmup = make_batch(scale.warmup_jobs, _WARMUP_TAG)
    drained = drain(redis, lambda: start_sluice(redis), warmup, batch, ours=True)
    return Cost(backlog, drained.worker_cpu_us, drained.redis_cpu_us, enqueue_us, refuse_us)


def run(redis: BenchRedis, scale: Scale, progress: Callable[[str], None]) -> list[list[Cost]]:
    """One list of costs per round, smallest backlog first."""
    rounds = []
    for number in range(1, scale.growth_rounds + 1):
        costs = []
        for backlog in scale.backlogs:
            cost = measure(redis, scale, backlog)
            costs.append(cost)
            progress(
                f"growth {number}/{scale.growth_rounds}, {backlog:,} jobs waiting: worker "
                f"{cost.worker_cpu_us:.0f} us CPU a job, enqueue {cost.enqueue_us:.0f} us, "
                f"refuse {cost.refuse_us:.0f} us"
            )
        rounds.append(costs)
    return rounds


async def _enqueue(url: str, count: int) -> tuple[float, float]:
    """Microseconds per accepted and per refused job, for the store calls of the gateway."""
    keys, wire = JobKeys(), PipelinedConnection(url)
    client = async_client(url, connections=1)
    batcher = ScriptBatcher(wire, keys, CORE_SCRIPT)
    store = JobStore(client, keys, batcher)

    async def accept() -> None:
        await store.enqueue(_new_job(), WORKER_GROUP, _NO_LIMIT)

    async def refuse() -> None:
        with contextlib.suppress(QueueFull):
            await store.enqueue(_new_job(), WORKER_GROUP, 1)

    try:
        await _timed(accept, _CONCURRENCY)  # connects and loads the script
        return await _timed(accept, count), await _timed(refuse, count)
    finally:
        await batcher.close()
        await wire.aclose()
        await client.aclose()


async def _timed(call: Callable[[], Awaitable[None]], count: int) -> float:
    async def repeat(number: int) -> None:
        for _ in range(number):
            await call()

    started = time.perf_counter()
    await asyncio.gather(*(repeat(count // _CONCURRENCY) for _ in range(_CONCURRENCY)))
    return (time.perf_counter() - started) / (count // _CONCURRENCY * _CONCURRENCY) * 1e6


def _new_job() -> NewJob:
    return NewJob(str(uuid.uuid4()), Task.CHAT.value, PAYLOAD.encode(), TTL_S)
