"""Waiting for a topology to reach a state."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import redis

T = TypeVar("T")

#: Failure timeout for tests that kill no server: a pause of the machine must not cause a failover.
LONG_TIMEOUT_MS = 30_000
_POLL_EVERY_S = 0.02


def until(condition: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """Waits until the condition returns a value; retries while servers do not respond or agree."""
    deadline = time.monotonic() + timeout_s
    trouble: object = None
    while True:
        try:
            held = condition()
            if held:
                return held
            trouble = held
        except (redis.RedisError, OSError) as error:
            trouble = error
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:.0f} s; last: {trouble!r}")
        time.sleep(_POLL_EVERY_S)
