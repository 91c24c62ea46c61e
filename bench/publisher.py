"""Creates running jobs and emits events through the store, as a worker does.

`python -m bench.publisher REDIS_URL JOBS` prints the job ids, then publishes as requested by each
line on stdin. Every event contains the monotonic time at which it was emitted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid

from bench.jobs import PAYLOAD, TTL_S
from sluice.common.contracts.jobs import WORKER_GROUP, EventType, JobKeys, Step, Task
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.jobs.store import Claim, JobStore, Lease, NewJob, PendingEvent, WorkerIdentity
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.connection import async_client
from sluice.common.redis.pipelined import PipelinedConnection

_NO_LIMIT = 1_000_000_000
_TICK_S = 0.001
_WORKER = WorkerIdentity(WORKER_GROUP, "bench", 3_600_000, TTL_S)


class Publisher:
    """Emits events for running jobs in turn."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._leases: list[Lease] = []
        self._emitted: list[int] = []
        self._next = 0

    async def start(self, count: int) -> list[str]:
        """Creates jobs and begins them; returns their ids."""
        job_ids = [str(uuid.uuid4()) for _ in range(count)]
        jobs = [NewJob(job_id, Task.CHAT.value, PAYLOAD.encode(), TTL_S) for job_id in job_ids]
        await asyncio.gather(*(self._store.enqueue(job, WORKER_GROUP, _NO_LIMIT) for job in jobs))
        claims = [Claim(job_id, f"0-{n}", f"token-{n}") for n, job_id in enumerate(job_ids, 1)]
        await self._store.begin(claims, _WORKER)
        self._leases = [Lease(claim.job_id, claim.message_id, 1, claim.token) for claim in claims]
        self._emitted = [0] * count
        return job_ids

    async def publish(self, events: int, per_s: float | None) -> None:
        """Publishes events in turn for all jobs, at a rate or as fast as possible."""
        started = time.perf_counter()
        sending = []
        for number in range(events):
            while per_s is not None and time.perf_counter() - started < number / per_s:
                await asyncio.sleep(_TICK_S)
            sending.append(asyncio.ensure_future(self._emit()))
        await asyncio.gather(*sending)

    async def _emit(self) -> None:
        index = self._next % len(self._leases)
        self._next += 1
        self._emitted[index] += 1
        data = b'{"at":%d}' % time.monotonic_ns()
        event = PendingEvent(EventType.MESSAGE, Step.WORKER_ECHO, data)
        await self._store.emit(self._leases[index], _WORKER, self._emitted[index], [event])


async def main(url: str, jobs: int) -> None:
    """Publishes once per line on stdin."""
    keys, wire = JobKeys(), PipelinedConnection(url)
    publisher = Publisher(
        JobStore(async_client(url, connections=1), keys, ScriptBatcher(wire, keys, CORE_SCRIPT))
    )
    print(json.dumps({"job_ids": await publisher.start(jobs)}), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        await publisher.publish(request["events"], request["per_s"])
        print("{}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
