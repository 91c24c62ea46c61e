"""How long an answer may take: until it begins, between two tokens, and in all."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from common.aio import STALL_GRACE_S, timer_is_late
from worker.features.model.errors import FirstTokenTimeout, IdleTimeout, ModelTooSlow, TotalTimeout

#: Seconds that a server has for its usage and its goodbye once the answer has ended.
TRAILER_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class ModelTimeouts:
    """Seconds, as MODEL_…_TIMEOUT_S say."""

    connect_s: float = 2.0
    first_token_s: float = 120.0
    idle_s: float = 20.0
    total_s: float = 900.0


class Stopwatch:
    """Runs while an answer is made, and knows when which budget is spent."""

    def __init__(self, budgets: ModelTimeouts, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeouts = budgets
        self._clock = clock
        self._total_at: float | None = None
        self._next_at: float | None = None
        self._first = True
        #: The end that was told last; somebody waits for it.
        self._known_deadline = math.inf
        #: Called when an end comes nearer than that.
        self.on_earlier_deadline: Callable[[], None] = lambda: None
        #: When the request left, and when the first token came.
        self.asked_at = self.began_at = clock()
        self.first_token_at: float | None = None
        #: Whether the answer has ended, whatever still follows.
        self.answer_ended = False

    def start(self) -> None:
        """There is a place for the request: from now on its time counts."""
        self.began_at = self._clock()
        self._total_at = self.began_at + self._timeouts.total_s
        self._check_deadline(self._total_at)

    def ask(self) -> None:
        """A request leaves, perhaps not the first one."""
        self.asked_at = self._clock()
        self._first, self.answer_ended = True, False
        self._next(self._timeouts.first_token_s)

    def pause(self) -> None:
        """It is not the server that is waited for now."""
        self._next_at = None

    def mark_token(self) -> None:
        """A piece of the answer has come."""
        if self.first_token_at is None:
            self.first_token_at = self._clock()
        self.touch()

    def touch(self) -> None:
        """The answer goes on, or is about to end."""
        self._first = False
        self._next(self._timeouts.idle_s)

    def mark_ended(self) -> None:
        """The answer has ended; a server has a moment more for its usage and its goodbye."""
        self.answer_ended = True
        self._next(TRAILER_TIMEOUT_S)

    def _next(self, seconds: float) -> None:
        self._next_at = self._clock() + seconds
        self._check_deadline(self._next_at)

    def _check_deadline(self, end: float) -> None:
        if end < self._known_deadline:
            self.on_earlier_deadline()

    @property
    def left_s(self) -> float | None:
        """Seconds until a budget is spent; None while none is running."""
        ends = [end for end in (self._total_at, self._next_at) if end is not None]
        self._known_deadline = min(ends, default=math.inf)
        return max(0.0, self._known_deadline - self._clock()) if ends else None

    @property
    def elapsed_ms(self) -> int:
        """Since there was a place for the request."""
        return round((self._clock() - self.began_at) * 1000)

    @property
    def first_token_s(self) -> float | None:
        """How long the first token took, from when its request left."""
        return None if self.first_token_at is None else self.first_token_at - self.asked_at

    @property
    def since_first_token_s(self) -> float:
        """How long there have been tokens."""
        return 0.0 if self.first_token_at is None else self._clock() - self.first_token_at

    def timeout_error(self) -> ModelTooSlow | None:
        """The error that says which budget is spent; None while there is time.

        Where the answer is `over` it is no error: nothing more is worth waiting for.
        """
        now = self._clock()
        budgets = self._timeouts
        if self._total_at is not None and now >= self._total_at:
            return TotalTimeout(
                f"the model took longer than {budgets.total_s:g} s for a whole answer; "
                "ask for fewer tokens (max_tokens) or raise MODEL_TOTAL_TIMEOUT_S"
            )
        if self._next_at is None or now < self._next_at:
            return None
        if self._first:
            return FirstTokenTimeout(
                f"the model did not begin to answer within {budgets.first_token_s:g} s; "
                "send a shorter prompt or raise MODEL_FIRST_TOKEN_TIMEOUT_S"
            )
        return IdleTimeout(
            f"the model fell silent for {budgets.idle_s:g} s in the middle of an answer; "
            "look at its server, or raise MODEL_IDLE_TIMEOUT_S"
        )


class TimeoutTimer:
    """Rings when a budget of a stopwatch is spent. Most tokens put its end off, and cost nothing:
    the timer looks again when it is over.

    Time in which this process stood still is not the model's: tokens may lie in the socket, and
    are read first.
    """

    def __init__(self, watch: Stopwatch) -> None:
        self._stopwatch = watch
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        #: The error that says which budget is spent.
        self.expired: asyncio.Future[ModelTooSlow] = self._loop.create_future()
        watch.on_earlier_deadline = self._set
        self._set()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left_s = self._stopwatch.left_s
        self._timer = None if left_s is None else self._loop.call_later(left_s, self._check)

    def _check(self) -> None:
        error = self._stopwatch.timeout_error()
        if error is None:
            self._set()
        elif timer_is_late(self._timer):
            self._timer = self._loop.call_later(STALL_GRACE_S, self._check)
        elif not self.expired.done():
            self.expired.set_result(error)

    def close(self) -> None:
        """It is not going to ring any more."""
        self._stopwatch.on_earlier_deadline = lambda: None
        if self._timer is not None:
            self._timer.cancel()
