"""Interfaces of job store and queue for the gateway, with one partition or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from sluice.common import codec
from sluice.common.contracts.jobs import JobKeys
from sluice.common.redis.scripts import Reply

if TYPE_CHECKING:
    from sluice.common.jobs.queue import DeadLetter, DeadLetterRedrive, DueJobs, QueueStore
    from sluice.common.jobs.queue_stats import JobCounts
    from sluice.common.jobs.store import AcceptedJob, NewJob


class JobStoreProtocol(Protocol):
    """`JobStore` or `PartitionedStore`."""

    keys: JobKeys

    def new_id(self, draw: Callable[[], str]) -> str:
        """A new id for a job that may go to any partition; `draw` returns a random one."""

    async def enqueue(self, job: NewJob, group: str, backlog_limit: int) -> AcceptedJob:
        """Accept a job, or raise the reason why not and change nothing."""

    async def is_replay(self, job: NewJob) -> bool:
        """True if the Idempotency-Key was used before, with this request or another."""

    async def get(self, job_id: str) -> codec.Job | None:
        """The job; None if it does not exist (any more)."""

    async def cancel(self, job_id: str, group: str, data: bytes, default_ttl_s: int) -> Reply:
        """Cancel a job: CANCELED, CANCELING, ALREADY or MISSING."""

    async def counts(self) -> JobCounts:
        """Numbers of jobs accepted and ended so far."""

    async def check_writable(self) -> None:
        """Check that Redis answers and accepts writes; raises StoreUnavailable."""


class QueueProtocol(Protocol):
    """`QueueStore` or `PartitionedQueue`."""

    keys: JobKeys

    @property
    def queues(self) -> Sequence[QueueStore]:
        """The queue of every partition."""

    async def prune_quota(self, active_key: str) -> int:
        """Remove ended jobs from a key's quota; returns how many."""

    async def due_jobs(self, limit: int) -> DueJobs:
        """The scheduled jobs that are due, and when the next one is."""

    async def dead_letters(self, before: str, count: int) -> list[DeadLetter]:
        """Dead letters older than an id (`+` for all), newest first."""

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        """One dead letter, or None."""

    async def count_dead_letters(self) -> int: ...

    async def redrive(self, letter: DeadLetterRedrive, schedule_limit: int) -> Reply:
        """Create a new job from a dead letter, once: CREATED, LIMITED or MISSING."""

    def redriven_job_id(self, letter_id: str, of_job: str = "") -> str:
        """The id of the job created from a dead letter: always the same one."""

    async def find_redriven_job(self, letter_id: str) -> str | None:
        """The id of the job recently created from a dead letter that no longer exists."""

    async def purge(self, letter_ids: Sequence[str]) -> int:
        """Delete dead letters; returns how many there were."""
