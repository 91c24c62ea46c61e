"""The job store of a gateway with several partitions: passes each call to the right one.

The job id determines the partition. With a single partition its `JobStore` is used directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Final

from sluice.common import codec
from sluice.common.contracts.access import TAIL_DIGITS
from sluice.common.contracts.jobs import TTL_MIN_S
from sluice.common.errors import QueueFull, ScheduleFull, SluiceError
from sluice.common.jobs.partition_clients import PartitionClients
from sluice.common.jobs.partitioned_queue import join_queues
from sluice.common.jobs.protocols import JobStoreProtocol, QueueProtocol
from sluice.common.jobs.queue import QueueStore
from sluice.common.jobs.queue_stats import JobCounts
from sluice.common.jobs.store import NO_LANES, AcceptedJob, JobStore, NewJob
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.partitions import HOME_PARTITION
from sluice.common.redis.scripts import Reply
from sluice.gateway.jobs.ids import new_job_id_in

#: Partitions that are tried before a job that may go to any partition is refused.
MOST_ASKED: Final = 4
#: Ids drawn to find a healthy partition; then any partition is used.
MOST_DRAWN: Final = 64
#: An id that no job has.
_NO_JOB: Final = "none"


class PartitionedStore:
    """Implements `JobStoreProtocol` over the `JobStore` of each partition.

    `batchers`: those of the stores, in the order of the partitions.
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
        #: Tasks that check whether unhealthy partitions work again, by partition.
        self._probes: dict[int, asyncio.Task[None]] = {}

    def of(self, job_id: str) -> JobStore:
        """The store of the partition that a job belongs to."""
        return self._stores[self._partitions.number(job_id)]

    def healthy(self, number: int) -> bool:
        """True if a partition is expected to accept jobs.

        An unhealthy one is probed from time to time, not with jobs that could go elsewhere.
        """
        batcher = self._batchers[number]
        if batcher.should_probe and number not in self._probes:
            self._probes[number] = asyncio.ensure_future(self._probe(number))
        return batcher.healthy

    async def _probe(self, number: int) -> None:
        """Run harmless writes on a partition, over the connection of new jobs."""
        store = self._stores[number]
        try:
            await store.check_writable()
            await store.cancel(_NO_JOB, _NO_JOB, b"{}", TTL_MIN_S)
        except SluiceError:
            self._batchers[number].mark_unhealthy()
        finally:
            del self._probes[number]

    def new_id(self, draw: Callable[[], str]) -> str:
        """An id for a job that may go to any partition: in a healthy one, if possible."""
        for _ in range(MOST_DRAWN):
            job_id = draw()
            if self.healthy(self._partitions.number(job_id)):
                break
        return job_id

    # -- JobStoreProtocol ------------------------------------------------------------------

    async def enqueue(self, job: NewJob, group: str, backlog_limit: int) -> AcceptedJob:
        """Accept a job, or raise the reason for a refusal and change nothing.

        A job that may go to any partition is tried on others if a partition is full; never
        after an error that leaves open whether the job was accepted.
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
        """True if the Idempotency-Key was used before."""
        return await self.of(job.job_id).is_replay(job)

    async def get(self, job_id: str) -> codec.Job | None:
        return await self.of(job_id).get(job_id)

    async def cancel(self, job_id: str, group: str, data: bytes, default_ttl_s: int) -> Reply:
        """Cancel a waiting job, or request it: CANCELED, CANCELING, ALREADY or MISSING."""
        return await self.of(job_id).cancel(job_id, group, data, default_ttl_s)

    async def counts(self) -> JobCounts:
        """Jobs accepted and ended so far, in all partitions."""
        found = await asyncio.gather(*(store.counts() for store in self._stores))
        return JobCounts(
            *(sum(getattr(counts, field.name) for counts in found) for field in fields(JobCounts))
        )

    async def check_writable(self) -> None:
        """Check that the home partition accepts writes; raises StoreUnavailable.

        The others are not checked: jobs go to the healthy ones, and one failed partition must
        not take every gateway out of service.
        """
        await self._stores[HOME_PARTITION].check_writable()

    def _others(self, job: NewJob) -> Iterator[NewJob]:
        """Copies of the job for other healthy partitions."""
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
    """The job store and the queue over all partitions.

    `lanes`: for each partition, the batchers of its lanes other than the normal one.
    """
    lane_batchers = lanes or [NO_LANES] * len(lines)
    arguments = [
        (line.client, line.keys, each, others)
        for line, each, others in zip(lines, batchers, lane_batchers)
    ]
    stores = [JobStore(*each) for each in arguments]
    queue = join_queues(lines.partitions, [QueueStore(*each) for each in arguments])
    if len(stores) == 1:
        return stores[HOME_PARTITION], queue
    return PartitionedStore(lines, stores, batchers), queue
