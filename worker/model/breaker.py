"""Keeps requests from a server that answers its probes and fails at everything else."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Failures in a row after which it is left alone.
THRESHOLD = 3
#: Seconds that it is left alone: twice as long each time, up to the second number.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class Breaker:
    """Closed: all may pass. Open: nobody. Then one on trial, who decides what follows."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._open_until: float | None = None
        #: What went wrong last, in words.
        self.reason = ""

    @property
    def is_open(self) -> bool:
        """Whether nobody may pass now."""
        return self._open_until is not None and self._clock() < self._open_until

    @property
    def on_trial(self) -> bool:
        """Whether one may pass, to see how it goes."""
        return self._open_until is not None and self._clock() >= self._open_until

    @property
    def opens_in_s(self) -> float:
        """Seconds until one may try."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def failed(self, words: str) -> None:
        """A request failed, and it was not its own fault as far as one can tell."""
        self.reason = words
        self._failures += 1
        if self.on_trial or (self._open_until is None and self._failures >= THRESHOLD):
            self._open_until = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def worked(self) -> None:
        """A request was answered: all is well."""
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._open_until = None
        self.reason = ""

    reset = worked
