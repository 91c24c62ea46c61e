"""Waiting for an answer, and whose fault it is when none has come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

#: Seconds after which a task that is still there is canceled again.
CANCEL_RETRY_S = 0.1


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended, however they did.

    Before Python 3.12 `asyncio.wait_for`, which redis-py uses, swallows a cancellation that comes
    together with the reply; once is not enough then.
    """
    remaining = set(tasks)
    while remaining:
        for task in remaining:
            task.cancel()
        _, remaining = await asyncio.wait(remaining, timeout=CANCEL_RETRY_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # nobody else is going to ask


T = TypeVar("T")

#: A timer that comes so much too late says that this process stood still: it was stopped, or the
#: machine had no time for it. Then the answer may be here already, and nobody has read it yet.
STALL_THRESHOLD_S: Final = 0.25
#: How long it gets to be read.
STALL_GRACE_S: Final = 0.5


def timer_is_late(timer: asyncio.TimerHandle | None) -> bool:
    """Whether a timer that rings just now says so."""
    return (
        timer is not None and asyncio.get_running_loop().time() - timer.when() > STALL_THRESHOLD_S
    )


async def wait_for(seconds: float, work: Awaitable[T]) -> T:
    """What `work` returns, if it does so in time; raises asyncio.TimeoutError.

    Time in which this process stood still does not count against the other side.
    """
    clock = asyncio.get_running_loop().time
    due = clock() + seconds
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done and clock() - due > STALL_THRESHOLD_S:
            await asyncio.wait({task}, timeout=STALL_GRACE_S)
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    finally:
        task.cancel()
