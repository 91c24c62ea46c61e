"""The state of one running attempt, and the ways to stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

from sluice.common import codec
from sluice.common.contracts.jobs import CancelStage, DataField, EventType, Step
from sluice.common.jobs.store import PendingEvent
from sluice.worker.execution.context import EventBuffer, JobContext, Outbox
from sluice.worker.execution.outcome import NO_HANDLER_OPTIONS, HandlerOptions, Timeout
from sluice.worker.queue.claim import ClaimedJob

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from sluice.worker.registry import OnEndFunction

#: Seconds that a handler gets to end after its task was canceled. Then the job ends without it.
HARD_KILL_S = 5.0
#: Timeouts of this many seconds and more have no timer, which would cost every job some time: the
#: executor polls them.
POLLED_TIMEOUT_S = 5.0


class StopReason(Enum):
    """Why an attempt's task was canceled."""

    #: Another attempt owns the job, or it ended or expired.
    LOST = "lost"
    TIMEOUT = "timeout"
    CANCEL = "cancel"


class Attempt:
    """The record that the executor's steps pass on."""

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
        #: The task that runs the handler; None before its first step.
        self.task: asyncio.Task[Any] | None = None
        self.handler_options: HandlerOptions = NO_HANDLER_OPTIONS
        #: Called if the job ends in error or is canceled; only internal tools have it.
        self.on_end: OnEndFunction | None = None
        self.timeout = Timeout(None, "")
        #: Why the task was canceled; set before the cancellation.
        self.stop_reason: StopReason | None = None
        self.cancel_requested = False
        #: The attempt's span, if traces are exported.
        self.span: Span | None = None
        #: Unix time at which the message was queued; 0 if unknown.
        self.queued_s = 0.0
        #: The handler has ended and the report is not sent yet.
        self.handler_ended = False
        #: The handler did not end when it was stopped; another task sends the report.
        self.abandoned = False
        #: The outcome is known; lease and slots are freed.
        self.closed = False
        self._grace_s = grace_s
        self._on_unresponsive = on_unresponsive
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def stop_requested(self) -> bool:
        """True if the handler was stopped, or asked to stop by a cancel."""
        return self.stop_reason is not None or self.cancel_requested

    def start_timeout(self, timeout: Timeout) -> None:
        """Set the timeout; called just before the handler starts."""
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
        """Disarm all timers: the handler has ended."""
        self.handler_ended = True
        if self._timers:
            for timer in self._timers:
                timer.cancel()
            self._timers.clear()

    def lose_threadsafe(self) -> None:
        """The lease is lost; called from the keeper's thread."""
        self.loop.call_soon_threadsafe(self._lose)

    def cancel_threadsafe(self) -> None:
        """A cancel was requested; called from the keeper's thread."""
        self.loop.call_soon_threadsafe(self.cancel)

    def cancel(self) -> None:
        """Ask the handler to stop, and cancel its task after the grace period."""
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
