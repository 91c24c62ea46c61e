"""A BullMQ queue on a real server: a producer of the package `bullmq`, and Sluice workers."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import bullmq
import redis.asyncio

from sluice.common.contracts.bullmq import BullKeys
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.bullmq.consumer import BullMQConsumer, BullMQWorker
from sluice.worker.monitoring.shutdown import StopSignals
from sluice.worker.registry import Registry
from tests.support.servers import Backend

#: Less than the 30 s after which a worker would find missed jobs by polling.
TIMEOUT_S = 25.0
#: The machine may be busy: the best of several measurements counts.
TRIES = 3
_NUMBERS = itertools.count(1)


class Bull:
    """One queue with its producer, its workers and its events."""

    def __init__(self, backend: Backend) -> None:
        assert backend.url is not None
        self.url = backend.url
        self.keys = BullKeys(f"queue-{next(_NUMBERS)}")
        self.redis = redis.asyncio.Redis.from_url(self.url, decode_responses=True)
        self.queue = bullmq.Queue(self.keys.queue, {"connection": self.url})
        self.registry = Registry()
        self.workers: list[BullMQWorker] = []

    def work(self, **settings: Any) -> BullMQConsumer:
        settings = {"bullmq_lock_ms": 30_000, "bullmq_lock_renew_ms": 500, **settings}
        wanted = WorkerSettings(redis_url=self.url, bullmq_queues=self.keys.queue, **settings)
        worker = BullMQWorker(self.url, wanted, self.registry)
        worker.start()
        self.workers.append(worker)
        return worker.consumers[0]

    async def stop(self) -> None:
        """Stop the worker that was started last."""
        worker = self.workers.pop()
        await worker.drain(StopSignals())
        await worker.close()

    async def add(self, name: str, data: Any = None, **opts: Any) -> str:
        job = await self.queue.add(name, {} if data is None else data, opts)
        return str(job.id)

    async def run(
        self, handler: Any = None, data: Any = None, *, name: str = "work", **opts: Any
    ) -> dict[str, str]:
        """Run one job, with this handler if given; returns its hash, and its id."""
        if handler is not None:
            self.registry.add_named(name, handler)
        if not self.workers:
            self.work()
        job_id = await self.add(name, data, **opts)
        [found] = await self.ended(job_id)
        return {**found, "id": job_id}

    async def hash(self, job_id: str) -> dict[str, str]:
        return await self.redis.hgetall(self.keys.job(job_id))

    async def state(self, job_id: str) -> str:
        return str(await self.queue.getJobState(job_id))

    async def events(self) -> list[dict[str, str]]:
        return [fields for _, fields in await self.redis.xrange(self.keys.events)]

    async def event_types(self, job_id: str) -> list[str]:
        return [event["event"] for event in await self.events() if event.get("jobId") == job_id]

    async def event(self, job_id: str, *types: str) -> dict[str, str]:
        """Wait for the first event of a job of one of these types."""
        last, deadline = "0", time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            for _, entries in await self.redis.xread({self.keys.events: last}, block=500) or ():
                last = entries[-1][0]
                for _, event in entries:
                    if event.get("jobId") == job_id and event["event"] in types:
                        return event
        raise AssertionError(f"job {job_id} of {types}: {await self.event_types(job_id)}")

    async def ended(self, *job_ids: str) -> list[dict[str, str]]:
        for job_id in job_ids:
            await self.event(job_id, "completed", "failed")
        return [await self.hash(job_id) for job_id in job_ids]

    async def close(self) -> None:
        while self.workers:
            await self.stop()
        await self.queue.close()
        await self.redis.aclose()


async def bull_on(backend: Backend) -> AsyncIterator[Bull]:
    bull = Bull(backend)
    yield bull
    await bull.close()
