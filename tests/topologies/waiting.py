"""Waiting for a topology to be as it should."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import redis

T = TypeVar("T")

#: After how long a server that stands still counts as dead, for tests that kill none: no pause of
#: this machine makes another one master.
UNHURRIED_MS = 30_000
_LOOK_EVERY_S = 0.02


def until(condition: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """Wait until something holds; a server that is away, or does not agree yet, is asked again."""
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
        time.sleep(_LOOK_EVERY_S)
