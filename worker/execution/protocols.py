"""The interfaces that the executor needs of a kind of queue.

For `jobs:stream` they are implemented by `JobStore`, `LeaseKeeper`, `Slots` and `Registry`, for
BullMQ queues by `BullMQBackend`, `LeaseKeeper`, `BullMQSlots` and `BullMQHandlers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sluice.common.contracts.queue import Answer
from sluice.common.jobs.store import Fence, JobOutcome, Lease, PendingEvent, WorkerIdentity

if TYPE_CHECKING:
    from sluice.worker.queue.claim import ClaimedJob
    from sluice.worker.registry import Handler


class JobBackend(Protocol):
    """Stores the events and the outcome of attempts. Every write is fenced by the lease."""

    @property
    def queue(self) -> str:
        """Name of the queue in traces."""

    async def emit(
        self, lease: Lease, worker: WorkerIdentity, first: int, events: Sequence[PendingEvent]
    ) -> Answer:
        """Append events numbered from `first`: OK, LOST or GONE."""

    async def save(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        name: str,
        value: bytes,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Answer:
        """Store a step for later attempts, after the events before it: OK, LOST or GONE."""

    async def saved(self, lease: Lease) -> dict[str, bytes] | None:
        """All steps that attempts of the job have stored; None if the attempt is over."""

    async def children(self, lease: Lease) -> dict[str, Any]:
        """The results of the child jobs, by key."""

    def fence(self, lease: Lease) -> Fence:
        """The fields with which another script can check that the attempt is still current."""

    def finish(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        ending: JobOutcome,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Coroutine[Any, Any, Answer]:
        """End the job: OK, ALREADY, LOST or GONE. Raises JobError if it cannot store the result."""

    def retry(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        delay_ms: int,
        error: bytes,
        data: bytes,
        free: bool = False,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Coroutine[Any, Any, Answer]:
        """Give the job another attempt later: OK, CANCELED, LOST or GONE."""

    def release(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        data: bytes,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Coroutine[Any, Any, Answer]:
        """Let another worker take the job at once: OK, LOST or GONE."""


class LeaseManager(Protocol):
    """Renews the leases of running jobs."""

    def hold(
        self,
        lease: Lease,
        on_lost: Callable[[], object],
        on_cancel: Callable[[], object] = lambda: None,
    ) -> None:
        """Renew a lease until it is dropped. The callbacks may run in any thread."""

    def drop(self, lease: Lease) -> None:
        """Stop renewing the lease."""


class AttemptSlots(Protocol):
    """The slots in which attempts run."""

    def mark_finishing(self, task: asyncio.Task[Any] | None) -> None:
        """The handler of a task has ended, and its report is not sent yet."""

    def replace(self, task: asyncio.Task[Any] | None, work: Coroutine[Any, Any, Any]) -> None:
        """Abandon a task that does not end, and run `work` in its slot."""


class HandlerResolver(Protocol):
    """Finds the handler of a job."""

    def resolve_job(self, job: ClaimedJob) -> tuple[Handler, Any]:
        """The handler of an attempt, and its payload before validation; raises JobError."""
