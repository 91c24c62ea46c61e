"""One attempt under way: what it may still do, and who may stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from common import codec
from common.contracts.jobs import CancelStage, DataField, EventType, Step
from common.options import NO_OPTIONS
from common.store import PendingEvent
from worker.context import EventBuffer, JobContext, Outbox
from worker.intake import Attempt
from worker.terms import NO_HANDLER_TERMS, Budget, HandlerTerms

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from worker.registry import EndedFunction

#: How long a handler may ignore that its task was canceled before the job ends without it.
STUBBORN_S = 5.0
#: Budgets from here on get no timer of their own, which would cost every job: the executor looks
#: at them now and then.
WATCHED_FROM_S = 5.0


class Stop(Enum):
    """Why an attempt's task was canceled."""

    #: Another attempt owns the job, or it ended or expired.
    LOST = "lost"
    TIMEOUT = "timeout"
    CANCEL = "cancel"


class Run:
    """One attempt on its way through the pipeline."""

    __slots__ = (
        "_grace_s",
        "_on_stubborn",
        "_timers",
        "attempt",
        "budget",
        "cancel_requested",
        "context",
        "events",
        "handler",
        "lease",
        "left_behind",
        "loop",
        "on_end",
        "over",
        "performed",
        "queued_s",
        "span",
        "stop",
        "task",
        "timed_out",
    )

    def __init__(
        self,
        attempt: Attempt,
        outbox: Outbox,
        grace_s: float,
        on_stubborn: Callable[[Run], None],
    ) -> None:
        self.attempt = attempt
        self.lease = attempt.lease
        self.events = EventBuffer(attempt.lease, outbox)
        self.context = JobContext(attempt.lease, attempt.task, self.events)
        if attempt.wishes.options is not NO_OPTIONS:
            self.context.act_for(attempt.wishes.options)
        self.loop = asyncio.get_running_loop()
        #: The task that runs the handler; none before its first step.
        self.task: asyncio.Task[Any] | None = None
        self.handler: HandlerTerms = NO_HANDLER_TERMS
        #: Who wants to know that the job has ended badly; for nearly all jobs nobody.
        self.on_end: EndedFunction | None = None
        self.budget = Budget(None, "")
        #: Why the task was canceled; set before it is.
        self.stop: Stop | None = None
        self.cancel_requested = False
        #: Its part of a trace, while it is written down.
        self.span: Span | None = None
        #: When its message was queued; 0 for unknown.
        self.queued_s = 0.0
        #: The handler has ended; only the report is missing.
        self.performed = False
        #: The handler would not end; somebody else makes the report.
        self.left_behind = False
        #: Its outcome is known; nothing is held for it any more.
        self.over = False
        self._grace_s = grace_s
        self._on_stubborn = on_stubborn
        self._timers: list[asyncio.TimerHandle] = []

    def start_clock(self, budget: Budget) -> None:
        """The handler is about to start, and has so much time."""
        self.budget = budget
        seconds = budget.seconds
        if seconds is not None:
            self.context.limit(seconds)
            if seconds < WATCHED_FROM_S:
                self._timers.append(self.loop.call_later(seconds, self._halt, Stop.TIMEOUT))

    def check_time(self) -> None:
        """Stop the handler if its time is up."""
        remaining_s = self.context.remaining_s
        if remaining_s is not None and remaining_s <= 0:
            self._halt(Stop.TIMEOUT)

    def end(self) -> None:
        """The handler has ended: nothing can stop it any more."""
        self.performed = True
        if self._timers:
            for timer in self._timers:
                timer.cancel()
            self._timers.clear()

    def lose(self) -> None:
        """The lease is gone; called from the keeper's thread."""
        self.loop.call_soon_threadsafe(self._lose)

    def cancel_soon(self) -> None:
        """Somebody wants the job canceled; called from the keeper's thread."""
        self.loop.call_soon_threadsafe(self.cancel)

    def cancel(self) -> None:
        """Ask the handler to stop; where it has not after the grace, cancel its task."""
        if self.cancel_requested or self.performed:
            return
        self.cancel_requested = True
        self._say(CancelStage.ASKED, {DataField.GRACE_S.value: self._grace_s})
        self.context.ask_to_stop()
        self._timers.append(self.loop.call_later(self._grace_s, self._force))

    def _force(self) -> None:
        self._say(CancelStage.FORCED, {})
        self._halt(Stop.CANCEL)

    def _say(self, stage: CancelStage, more: dict[str, object]) -> None:
        data = {
            DataField.ATTEMPT.value: self.lease.attempt,
            DataField.STAGE.value: stage.value,
            **more,
        }
        self.events.add(
            PendingEvent(
                EventType.CANCELING.value,
                Step.WORKER_CANCEL.value,
                codec.dumps(data),
            )
        )

    def _lose(self) -> None:
        if self.performed or self.stop is Stop.LOST:
            return
        self.stop = Stop.LOST
        self.events.lost = True
        self._interrupt()

    def _halt(self, stop: Stop) -> None:
        if self.performed or self.stop is not None:
            return
        self.stop = stop
        self._interrupt()

    def _interrupt(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self._timers.append(self.loop.call_later(STUBBORN_S, self._on_stubborn, self))
