"""One attempt under way: what it may still do, and who may stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

from common import codec
from common.contracts.jobs import CancelStage, DataField, EventType, Step
from common.jobs.store import PendingEvent
from worker.execution.context import EventBuffer, JobContext, Outbox
from worker.execution.outcome import NO_HANDLER_OPTIONS, HandlerOptions, Timeout
from worker.queue.claim import ClaimedJob

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from worker.registry import OnEndFunction

#: How long a handler may ignore that its task was canceled before the job ends without it.
HARD_KILL_S = 5.0
#: Budgets from here on get no timer of their own, which would cost every job: the executor looks
#: at them now and then.
POLLED_TIMEOUT_S = 5.0


class StopReason(Enum):
    """Why an attempt's task was canceled."""

    #: Another attempt owns the job, or it ended or expired.
    LOST = "lost"
    TIMEOUT = "timeout"
    CANCEL = "cancel"


class Attempt:
    """One attempt on its way through the pipeline."""

    __slots__ = (
        "_grace_s",
        "_on_unresponsive",
        "_timers",
        "abandoned",
        "cancel_requested",
        "closed",
        "context",
        "events",
        "handler_ended",
        "handler_options",
        "job",
        "lease",
        "loop",
        "on_end",
        "queued_s",
        "span",
        "stop_reason",
        "task",
        "timed_out",
        "timeout",
    )

    def __init__(
        self,
        job: ClaimedJob,
        outbox: Outbox,
        grace_s: float,
        on_unresponsive: Callable[[Attempt], None],
    ) -> None:
        self.job = job
        self.lease = job.lease
        self.events = EventBuffer(job.lease, outbox)
        self.context = JobContext(job.lease, job.task, self.events)
        options = job.request.options
        if options.tenant is not None or options.tools is not None:
            self.context.apply_options(options)
        self.loop = asyncio.get_running_loop()
        #: The task that runs the handler; none before its first step.
        self.task: asyncio.Task[Any] | None = None
        self.handler_options: HandlerOptions = NO_HANDLER_OPTIONS
        #: Who wants to know that the job has ended badly; for nearly all jobs nobody.
        self.on_end: OnEndFunction | None = None
        self.timeout = Timeout(None, "")
        #: Why the task was canceled; set before it is.
        self.stop_reason: StopReason | None = None
        self.cancel_requested = False
        #: Its part of a trace, while it is written down.
        self.span: Span | None = None
        #: When its message was queued; 0 for unknown.
        self.queued_s = 0.0
        #: The handler has ended; only the report is missing.
        self.handler_ended = False
        #: The handler would not end; somebody else makes the report.
        self.abandoned = False
        #: Its outcome is known; nothing is held for it any more.
        self.closed = False
        self._grace_s = grace_s
        self._on_unresponsive = on_unresponsive
        self._timers: list[asyncio.TimerHandle] = []

    def start_timeout(self, timeout: Timeout) -> None:
        """The handler is about to start, and has so much time."""
        self.timeout = timeout
        seconds = timeout.seconds
        if seconds is not None:
            self.context.set_timeout(seconds)
            if seconds < POLLED_TIMEOUT_S:
                self._timers.append(self.loop.call_later(seconds, self._stop, StopReason.TIMEOUT))

    def check_timeout(self) -> None:
        """Stop the handler if its time is up."""
        remaining_s = self.context.remaining_s
        if remaining_s is not None and remaining_s <= 0:
            self._stop(StopReason.TIMEOUT)

    def mark_handler_ended(self) -> None:
        """The handler has ended: nothing can stop it any more."""
        self.handler_ended = True
        if self._timers:
            for timer in self._timers:
                timer.cancel()
            self._timers.clear()

    def lose_threadsafe(self) -> None:
        """The lease is gone; called from the keeper's thread."""
        self.loop.call_soon_threadsafe(self._lose)

    def cancel_threadsafe(self) -> None:
        """Somebody wants the job canceled; called from the keeper's thread."""
        self.loop.call_soon_threadsafe(self.cancel)

    def cancel(self) -> None:
        """Ask the handler to stop; where it has not after the grace, cancel its task."""
        if self.cancel_requested or self.handler_ended:
            return
        self.cancel_requested = True
        self._emit_stage(CancelStage.ASKED, {DataField.GRACE_S: self._grace_s})
        self.context.request_cancel()
        self._timers.append(self.loop.call_later(self._grace_s, self._force_cancel))

    def _force_cancel(self) -> None:
        self._emit_stage(CancelStage.FORCED, {})
        self._stop(StopReason.CANCEL)

    def _emit_stage(self, stage: CancelStage, more: dict[str, object]) -> None:
        data = {
            DataField.ATTEMPT: self.lease.attempt,
            DataField.STAGE: stage.value,
            **more,
        }
        self.events.add(
            PendingEvent(
                EventType.CANCELING,
                Step.WORKER_CANCEL,
                codec.dumps(data),
            )
        )

    def _lose(self) -> None:
        if self.handler_ended or self.stop_reason is StopReason.LOST:
            return
        self.stop_reason = StopReason.LOST
        self.events.lost = True
        self._cancel_task()

    def _stop(self, reason: StopReason) -> None:
        if self.handler_ended or self.stop_reason is not None:
            return
        self.stop_reason = reason
        self._cancel_task()

    def _cancel_task(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self._timers.append(self.loop.call_later(HARD_KILL_S, self._on_unresponsive, self))


class RunningAttempts(dict[str, Attempt]):
    """The attempts of one queue that run in this process, by job id, in the order they began."""

    def limit_holders(self) -> Iterator[tuple[str, str]]:
        """The message id and limit key of each attempt."""
        return ((attempt.lease.message_id, attempt.job.limit_key) for attempt in self.values())
