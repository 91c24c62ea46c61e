"""What the executor needs of a front door: where reports go, what keeps a job ours, whose places.

The door of `jobs:stream` has `JobStore`, `LeaseKeeper`, `Slots` and `Registry`; BullMQ's has its
own (`worker.bullmq`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from common.contracts.queue import Answer
from common.jobs.store import Fence, JobOutcome, Lease, PendingEvent, WorkerIdentity

if TYPE_CHECKING:
    from worker.queue.claim import ClaimedJob
    from worker.registry import Handler


class JobBackend(Protocol):
    """Takes what attempts say and how they end. Every write proves the attempt's lease."""

    @property
    def queue(self) -> str:
        """What traces call the place where jobs wait."""

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
        """Keep a step for later attempts, after the events before it: OK, LOST or GONE."""

    async def saved(self, lease: Lease) -> dict[str, bytes] | None:
        """Every step that attempts of the job have kept; None if the attempt is over."""

    async def children(self, lease: Lease) -> dict[str, Any]:
        """What the jobs that this one waited for have returned, by key."""

    def fence(self, lease: Lease) -> Fence:
        """What a script of somebody else's needs to know whether the attempt still counts."""

    def finish(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        ending: JobOutcome,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Coroutine[Any, Any, Answer]:
        """End the job: OK, ALREADY, LOST or GONE. JobError: a result that cannot be taken."""

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
        """Hand the job back for another worker to take up at once: OK, LOST or GONE."""


class LeaseManager(Protocol):
    """Keeps running jobs ours."""

    def hold(
        self,
        lease: Lease,
        on_lost: Callable[[], object],
        on_cancel: Callable[[], object] = lambda: None,
    ) -> None:
        """Keep a lease alive until it is dropped; the callbacks may come from any thread."""

    def drop(self, lease: Lease) -> None:
        """The attempt is over."""


class AttemptSlots(Protocol):
    """Where attempts run."""

    def mark_finishing(self, task: asyncio.Task[Any] | None) -> None:
        """A task's handler has ended; only its report is missing."""

    def replace(self, task: asyncio.Task[Any] | None, work: Coroutine[Any, Any, Any]) -> None:
        """Give up on a task that will not end, and run `work` in its place."""


class HandlerResolver(Protocol):
    """Knows who does what."""

    def resolve_job(self, job: ClaimedJob) -> tuple[Handler, Any]:
        """An attempt's handler and its payload, not looked at yet; raises JobError."""
