"""Timeouts of a model's answer: first token, between tokens, and in total."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from sluice.common.aio import STALL_GRACE_S, timer_is_late
from sluice.worker.features.model.errors import (
    FirstTokenTimeout,
    IdleTimeout,
    ModelTooSlow,
    TotalTimeout,
)

#: Seconds that a server has, after the end of the answer, to send usage and close the stream.
TRAILER_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class ModelTimeouts:
    """Timeouts in seconds, from MODEL_…_TIMEOUT_S."""

    connect_s: float = 2.0
    first_token_s: float = 120.0
    idle_s: float = 20.0
    total_s: float = 900.0


class Stopwatch:
    """Measures an answer and knows when each timeout expires."""

    def __init__(
        self, timeouts: ModelTimeouts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeouts = timeouts
        self._clock = clock
        self._total_at: float | None = None
        self._next_at: float | None = None
        self._first = True
        #: Deadline for which the timer is set.
        self._known_deadline = math.inf
        #: Called when the deadline becomes earlier than that.
        self.on_earlier_deadline: Callable[[], None] = lambda: None
        #: Times of the request and of the first token.
        self.asked_at = self.began_at = clock()
        self.first_token_at: float | None = None
        #: True if the answer is complete, even if the stream is still open.
        self.answer_ended = False

    def start(self) -> None:
        """The request has got a slot: start the total timeout."""
        self.began_at = self._clock()
        self._total_at = self.began_at + self._timeouts.total_s
        self._check_deadline(self._total_at)

    def ask(self) -> None:
        """A request is sent, possibly a retry."""
        self.asked_at = self._clock()
        self._first, self.answer_ended = True, False
        self._next(self._timeouts.first_token_s)

    def pause(self) -> None:
        """Stop the idle timeout while the server is not being waited for."""
        self._next_at = None

    def mark_token(self) -> None:
        """A part of the answer has arrived."""
        if self.first_token_at is None:
            self.first_token_at = self._clock()
        self.touch()

    def touch(self) -> None:
        """Restart the idle timeout."""
        self._first = False
        self._next(self._timeouts.idle_s)

    def mark_ended(self) -> None:
        """The answer is complete; allow TRAILER_TIMEOUT_S for usage and the end of the stream."""
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
        """Seconds until a timeout expires; None if none is running."""
        ends = [end for end in (self._total_at, self._next_at) if end is not None]
        self._known_deadline = min(ends, default=math.inf)
        return max(0.0, self._known_deadline - self._clock()) if ends else None

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds since the request got its slot."""
        return round((self._clock() - self.began_at) * 1000)

    @property
    def first_token_s(self) -> float | None:
        """Seconds from sending the request to the first token."""
        return None if self.first_token_at is None else self.first_token_at - self.asked_at

    @property
    def since_first_token_s(self) -> float:
        """Seconds since the first token."""
        return 0.0 if self.first_token_at is None else self._clock() - self.first_token_at

    def timeout_error(self) -> ModelTooSlow | None:
        """The error of the expired timeout; None if there is none.

        If `answer_ended` is true, the caller ignores it: the answer is complete.
        """
        now = self._clock()
        timeouts = self._timeouts
        if self._total_at is not None and now >= self._total_at:
            return TotalTimeout(
                f"the model took longer than {timeouts.total_s:g} s for a whole answer; "
                "ask for fewer tokens (max_tokens) or raise MODEL_TOTAL_TIMEOUT_S"
            )
        if self._next_at is None or now < self._next_at:
            return None
        if self._first:
            return FirstTokenTimeout(
                f"the model did not begin to answer within {timeouts.first_token_s:g} s; "
                "send a shorter prompt or raise MODEL_FIRST_TOKEN_TIMEOUT_S"
            )
        return IdleTimeout(
            f"the model sent nothing for {timeouts.idle_s:g} s in the middle of an answer; "
            "check its server, or raise MODEL_IDLE_TIMEOUT_S"
        )


class TimeoutTimer:
    """Fires when a timeout of a stopwatch expires.

    Tokens extend the deadline without touching the timer; it is set again when it fires early. Time
    in which this process was stalled does not count against the model: tokens may be waiting in the
    socket and are read first.
    """

    def __init__(self, watch: Stopwatch) -> None:
        self._stopwatch = watch
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        #: The error of the expired timeout.
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
        """Stop the timer."""
        self._stopwatch.on_earlier_deadline = lambda: None
        if self._timer is not None:
            self._timer.cancel()
