"""Waits until a condition holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import redis

T = TypeVar("T")

#: A machine that is busy, or stands still, takes long for anything.
TIMEOUT_S = 60.0
_POLL_EVERY_S = 0.01


async def eventually(condition: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """Waits until a condition (which may be async) is true; fails after the timeout."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"{condition} did not hold within {timeout_s} s")
        await asyncio.sleep(_POLL_EVERY_S)


def wait_until(
    condition: Callable[[], T | None],
    timeout_s: float = TIMEOUT_S,
    what: str = "",
    errors: tuple[type[Exception], ...] = (),
) -> T:
    """Like `eventually`, in threads and other blocking code; `errors` do not end the wait."""
    deadline = time.monotonic() + timeout_s
    trouble: object = None
    while True:
        try:
            if value := condition():
                return value
        except errors as error:
            trouble = error
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{what or condition}: not within {timeout_s} s; last: {trouble!r}"
            )
        time.sleep(_POLL_EVERY_S)


def until(condition: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """Waits for Redis servers, also while they do not respond or agree."""
    return wait_until(condition, timeout_s, what, (redis.RedisError, OSError))
