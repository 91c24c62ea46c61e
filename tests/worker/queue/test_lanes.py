"""Lanes: urgent jobs first, but not all of them before any other; all lanes share their keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.audit.auditor import Auditor, AuditPace
from sluice.common.jobs.options import JobOptions
from sluice.common.jobs.queue import QueueStore
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.jobs.store import JobStore, WorkerIdentity
from sluice.common.redis.batching import ScriptBatcher
from tests.support.servers import Backend
from tests.support.store.jobs import new_job
from tests.support.waiting import eventually
from tests.support.worker.handlers import Gate
from tests.support.worker.partitions import PartitionedWorker

LANES = ("high", "low")


class Laned:
    """The stores of a gateway for a queue with lanes, and a worker that consumes them."""

    def __init__(
        self, backend: Backend, keys: JobKeys, worker: WorkerIdentity, handler: Callable[..., Any]
    ) -> None:
        self.keys = keys
        names = [self.keys, *(self.keys.for_lane(lane) for lane in LANES)]
        self.worker = PartitionedWorker(
            [backend] * 3, handler, worker=worker, keys=names, weights=[4, 8, 1], lanes=LANES
        )
        self.client = backend.client()
        self._batchers = {
            each.lane: ScriptBatcher(backend.wire(), each, CORE_SCRIPT, 5.0) for each in names
        }
        normal = self._batchers[""]
        others = {lane: self._batchers[lane] for lane in LANES}
        self.store = JobStore(self.client, self.keys, normal, others)
        self.queue = QueueStore(self.client, self.keys, normal, others)
        self.group = worker.group

    async def post(self, lane: str = "", count: int = 1, **changes: Any) -> list[str]:
        options = JobOptions(lane=lane or None).to_json()
        jobs = [new_job(lane=lane, options=options, **changes) for _ in range(count)]
        for job in jobs:
            await self.store.enqueue(job, self.group, 10**6)
        return [job.job_id for job in jobs]

    async def ended(self, jobs: list[str]) -> bool:
        return await self.worker.ended(0, jobs) == len(jobs)

    async def close(self) -> None:
        await self.worker.close()
        for batcher in self._batchers.values():
            await batcher.close()


@pytest.fixture
async def laned(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[Callable[..., Laned]]:
    made: list[Laned] = []

    def make(handler: Callable[..., Any]) -> Laned:
        made.append(Laned(backend, keys, worker, handler))
        return made[-1]

    yield make
    for each in made:
        await each.close()


def test_only_the_stream_is_the_lane_s_own() -> None:
    keys = JobKeys().partition(3)
    high = keys.for_lane("high")
    assert (keys.stream, high.stream) == ("{3}:jobs:stream", "{3}:jobs:stream.lane:high")
    for name in ("counts", "index", "scheduled", "hints", "control", "dead_letters", "queue"):
        assert getattr(keys, name) == getattr(high, name)
    assert keys.for_lane("normal") == keys


async def test_a_message_is_added_to_its_lane_and_run_from_there(laned: Any) -> None:
    gate = Gate()
    here = laned(gate)
    jobs = [*await here.post(), *await here.post("high"), *await here.post("low")]
    for lane in ("", "high", "low"):
        [(_, fields)] = await here.client.xrange(here.keys.for_lane(lane).stream)
        assert set(fields) == {b"job_id", b"task", b"payload"}
    here.worker.start()
    await eventually(lambda: here.ended(jobs))
    assert await here.client.hget(here.keys.counts, "done") == b"3"
    await eventually(here.worker.pending_none)


@pytest.mark.real_redis
async def test_urgent_jobs_overtake_while_others_continue(laned: Any) -> None:
    gate = Gate(0.01)
    here = laned(gate)
    low, normal, high = [set(await here.post(lane, 100)) for lane in ("low", "", "high")]
    here.worker.start()
    await eventually(lambda: len(gate.begun) >= 95)
    first = set(gate.begun[:95])
    assert len(first & high) > len(first & normal) > len(first & low) > 3


@pytest.mark.parametrize(("lane", "lanes"), [("high", True), ("", True), ("high", False)])
async def test_a_scheduled_job_is_added_to_its_lane(
    laned: Any, backend: Backend, lane: str, lanes: bool
) -> None:
    """A worker without lanes adds it to the normal queue."""
    here = laned(Gate())
    [job_id] = await here.post(lane, delay_ms=1, schedule_limit=10)
    await asyncio.sleep(0.01)
    batcher = ScriptBatcher(backend.wire(), here.keys, CORE_SCRIPT, 5.0)
    without = QueueStore(here.client, here.keys, batcher)
    await (here.queue if lanes else without).promote([job_id])
    await batcher.close()
    assert await here.client.xlen(here.keys.for_lane(lane if lanes else "").stream) == 1


async def test_a_cancel_between_attempts_acks_only_its_own_message(laned: Any) -> None:
    """Message ids are unique only within a stream."""
    here = laned(Gate())
    [other], [job_id] = await here.post(), await here.post("high")
    normal, high = here.keys.stream, here.keys.for_lane("high").stream
    [(_, fields)] = await here.client.xrange(normal)
    for stream in (normal, high):
        await here.client.xgroup_create(stream, here.group, id="0", mkstream=True)
    await here.client.delete(normal)
    await here.client.xadd(normal, fields, id="7-7")
    await here.client.xgroup_create(normal, here.group, id="0", mkstream=True)
    await here.client.xreadgroup(here.group, "somebody", {normal: ">"})
    await here.client.hset(here.keys.lease(job_id), "message_id", "7-7")
    await here.store.cancel(job_id, here.group, b"{}", 600)
    pending = await here.client.xpending(normal, here.group)
    assert pending["pending"] == 1, other


async def test_an_audit_finds_jobs_of_lanes_on_their_queue(laned: Any) -> None:
    here = laned(Gate())
    for lane in ("", *LANES):
        await here.post(lane, 3)
    tenants = here.keys.for_lane("tenants.11").stream
    await here.client.rename(here.keys.for_lane("low").stream, tenants)
    report = await Auditor(here.client, here.keys, here.group, AuditPace(0.0, 0.0, 0.0)).run()
    assert (report.jobs_checked, report.violations_total) == (9, 0)


async def test_a_cancel_reaches_every_lane(laned: Any) -> None:
    gate = Gate(closed=True)
    here = laned(gate)
    [listener] = here.worker.listeners
    here.worker.start()
    jobs = [*await here.post("high"), *await here.post("low")]
    await eventually(lambda: gate.now == 2)
    for job_id in jobs:
        listener.on_message(job_id.encode())
    await eventually(lambda: here.ended(jobs))
    assert gate.now == 0
