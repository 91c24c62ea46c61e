"""Waiting for an answer, and whose fault it is when none has come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

T = TypeVar("T")

#: A timer that comes so much too late says that this process stood still: it was stopped, or the
#: machine had no time for it. Then the answer may be here already, and nobody has read it yet.
LATE_S: Final = 0.25
#: How long it gets to be read.
SECOND_CHANCE_S: Final = 0.5


def rings_late(timer: asyncio.TimerHandle | None) -> bool:
    """Whether a timer that rings just now says so."""
    return timer is not None and asyncio.get_running_loop().time() - timer.when() > LATE_S


async def within(seconds: float, work: Awaitable[T]) -> T:
    """What `work` returns, if it does so in time; raises asyncio.TimeoutError.

    Time in which this process stood still does not count against the other side.
    """
    clock = asyncio.get_running_loop().time
    due = clock() + seconds
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done and clock() - due > LATE_S:
            await asyncio.wait({task}, timeout=SECOND_CHANCE_S)
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    finally:
        task.cancel()
