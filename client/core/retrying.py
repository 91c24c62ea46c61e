"""How often, and after which pauses, something is tried again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from client.core.calls import Call
from client.errors import Broken, SluiceError, Unavailable

RETRIES = 4
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
#: A gateway that wants to be left alone for longer than this is told of at once.
LONGEST_RETRY_AFTER_S = 30.0
#: How long one tries to get back to a gateway that restarts, in waits and streams.
PATIENCE_S = 60.0
_BEHIND_A_PROXY = (502, 504)


class Backoff:
    """Pauses that grow, half of each by chance, and never end before the gateway's own word."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._next_s = FIRST_PAUSE_S

    def reset(self) -> None:
        """It went well."""
        self._next_s = FIRST_PAUSE_S

    def pause_s(self, at_least_s: float | None = None) -> float:
        """How long to wait now."""
        own_s = self._next_s * (0.5 + self._chance() / 2)
        self._next_s = min(self._next_s * 2, LONGEST_PAUSE_S)
        if at_least_s is None:
            return own_s
        # Those who were sent away together do not come back together.
        return at_least_s + min(own_s, at_least_s * 0.2)


class Retrying:
    """The tries of one request: so many times, or for so long."""

    def __init__(
        self,
        retries: int = RETRIES,
        patience_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._left = retries
        self._patience_s = patience_s
        self._clock = clock
        self._since: float | None = None
        self._backoff = Backoff(chance)

    def pause_s(self, error: SluiceError, call: Call[Any] | None = None) -> float | None:
        """How long to wait before it is tried again; None where it is not."""
        if not may_pass(error) or (call is not None and not _may_repeat(call, error)):
            return None
        pause_s = self._backoff.pause_s(error.retry_after_s)
        if self._patience_s is None:
            self._left -= 1
            return pause_s if self._left >= 0 else None
        now = self._clock()
        if self._since is None:
            self._since = now
        return pause_s if now + pause_s - self._since <= self._patience_s else None


def may_pass(error: SluiceError) -> bool:
    """Whether it may be over after a pause that somebody is ready to make."""
    return error.passing and (error.retry_after_s or 0.0) <= LONGEST_RETRY_AFTER_S


def _may_repeat(call: Call[Any], error: SluiceError) -> bool:
    """What was refused has changed nothing; what was not heard may have."""
    if call.repeatable:
        return True
    if isinstance(error, Unavailable):
        return error.status not in _BEHIND_A_PROXY
    return not isinstance(error, Broken)
