"""The store of a gateway whose jobs are divided into partitions: hands each call to the right one.

A job's id says which one that is. With a single partition its plain store is used instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Final

from common import codec
from common.contracts.access import TAIL_DIGITS
from common.contracts.jobs import TTL_MIN_S
from common.errors import QueueFull, ScheduleFull, SluiceError
from common.jobs.partition_clients import PartitionClients
from common.jobs.partitioned_queue import join_queues
from common.jobs.protocols import JobStoreProtocol, QueueProtocol
from common.jobs.queue import QueueStore
from common.jobs.queue_stats import JobCounts
from common.jobs.store import NO_LANES, AcceptedJob, JobStore, NewJob
from common.redis.batching import ScriptBatcher
from common.redis.partitions import HOME_PARTITION
from common.redis.scripts import Reply
from gateway.jobs.ids import new_job_id_in

#: Partitions that are asked for room before a job which may go anywhere is turned away.
MOST_ASKED: Final = 4
#: Ids drawn in search of a partition that is well, before any will do.
MOST_DRAWN: Final = 64
#: An id that no job has.
_NO_JOB: Final = "none"


class PartitionedStore:
    """What a gateway needs of a `JobStore`, over one of each partition.

    `batchers` carry what the stores write, partition by partition.
    """

    def __init__(
        self,
        lines: PartitionClients,
        stores: Sequence[JobStore],
        batchers: Sequence[ScriptBatcher],
    ) -> None:
        self.keys = lines.home.keys
        self._partitions = lines.partitions
        self._stores = tuple(stores)
        self._batchers = tuple(batchers)
        #: Who finds out whether partitions that had a fault are back.
        self._probes: dict[int, asyncio.Task[None]] = {}

    def of(self, job_id: str) -> JobStore:
        """The store of the partition that a job belongs to."""
        return self._stores[self._partitions.number(job_id)]

    def healthy(self, number: int) -> bool:
        """Whether a partition is expected to take jobs just now.

        One that had a fault is tried now and then, but not with a job that could go elsewhere.
        """
        batcher = self._batchers[number]
        if batcher.should_probe and number not in self._probes:
            self._probes[number] = asyncio.ensure_future(self._probe(number))
        return batcher.healthy

    async def _probe(self, number: int) -> None:
        """Have a partition do what changes nothing, the way that new jobs go."""
        store = self._stores[number]
        try:
            await store.check_writable()
            await store.cancel(_NO_JOB, _NO_JOB, b"{}", TTL_MIN_S)
        except SluiceError:
            self._batchers[number].mark_unhealthy()
        finally:
            del self._probes[number]

    def new_id(self, draw: Callable[[], str]) -> str:
        """An id for a job that may go anywhere: to a partition that is well, if there is one."""
        for _ in range(MOST_DRAWN):
            job_id = draw()
            if self.healthy(self._partitions.number(job_id)):
                break
        return job_id

    # -- as JobStoreProtocol ---------------------------------------------------------------

    async def enqueue(self, job: NewJob, group: str, backlog_limit: int) -> AcceptedJob:
        """Accept a job whole, or raise what forbids it and change nothing.

        One that may go anywhere is offered elsewhere where a partition has no room for it; never
        where nobody knows whether it was taken.
        """
        if not job.any_partition:
            return await self.of(job.job_id).enqueue(job, group, backlog_limit)
        others = self._others(job)
        while True:
            try:
                return await self.of(job.job_id).enqueue(job, group, backlog_limit)
            except (QueueFull, ScheduleFull):
                other = next(others, None)
                if other is None:
                    raise
            job = other

    async def is_replay(self, job: NewJob) -> bool:
        """Whether its Idempotency-Key has made a job before, or met another request."""
        return await self.of(job.job_id).is_replay(job)

    async def get(self, job_id: str) -> codec.Job | None:
        """The job, or None when there is none (any more)."""
        return await self.of(job_id).get(job_id)

    async def cancel(self, job_id: str, group: str, data: bytes, default_ttl_s: int) -> Reply:
        """End a job nobody runs, or ask for its end: CANCELED, CANCELING, ALREADY or MISSING."""
        return await self.of(job_id).cancel(job_id, group, data, default_ttl_s)

    async def counts(self) -> JobCounts:
        """How many jobs were accepted and ended so far, in all partitions together."""
        found = await asyncio.gather(*(store.counts() for store in self._stores))
        return JobCounts(
            *(sum(getattr(counts, field.name) for counts in found) for field in fields(JobCounts))
        )

    async def check_writable(self) -> None:
        """Prove that the home partition answers and takes writes; raises StoreUnavailable.

        Of the others, those that are well take what the others do not: one that is away must not
        take every gateway out of service.
        """
        await self._stores[HOME_PARTITION].check_writable()

    def _others(self, job: NewJob) -> Iterator[NewJob]:
        """The same job for other partitions, one after another."""
        count = self._partitions.count
        first = self._partitions.number(job.job_id)
        numbers = ((first + step) % count for step in range(1, min(count, MOST_ASKED)))
        tail = job.job_id[-TAIL_DIGITS:]
        for number in filter(self.healthy, numbers):
            yield replace(job, job_id=new_job_id_in(self._partitions, number, tail))


def build_stores(
    lines: PartitionClients,
    batchers: Sequence[ScriptBatcher],
    lanes: Sequence[Mapping[str, ScriptBatcher]] | None = None,
) -> tuple[JobStoreProtocol, QueueProtocol]:
    """Those of all partitions as one; those of a single one are themselves.

    `lanes`: of each partition, what carries jobs of lanes beside the normal one.
    """
    beside = lanes or [NO_LANES] * len(lines)
    terms = [
        (line.client, line.keys, each, others)
        for line, each, others in zip(lines, batchers, beside)
    ]
    stores = [JobStore(*each) for each in terms]
    queue = join_queues(lines.partitions, [QueueStore(*each) for each in terms])
    if len(stores) == 1:
        return stores[HOME_PARTITION], queue
    return PartitionedStore(lines, stores, batchers), queue
