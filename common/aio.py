"""Asyncio helpers: cancellation, and timeouts that tolerate a stall of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

#: Seconds between two cancellations of a task that has not ended.
CANCEL_RETRY_S = 0.1


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until all have ended, regardless of the outcome.

    Before Python 3.12 `asyncio.wait_for`, which redis-py uses, swallows a cancellation that arrives
    together with the reply. A task may therefore have to be canceled more than once.
    """
    remaining = set(tasks)
    while remaining:
        for task in remaining:
            task.cancel()
        _, remaining = await asyncio.wait(remaining, timeout=CANCEL_RETRY_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved


T = TypeVar("T")

#: A timer that fires this many seconds late shows that the process was stalled: it was stopped, or
#: got no CPU time. The reply may then have arrived already without having been read.
STALL_THRESHOLD_S: Final = 0.25
#: Seconds that such a reply gets to be read.
STALL_GRACE_S: Final = 0.5


def timer_is_late(timer: asyncio.TimerHandle | None) -> bool:
    """True if this timer fired late, i.e. the process was stalled."""
    return (
        timer is not None and asyncio.get_running_loop().time() - timer.when() > STALL_THRESHOLD_S
    )


async def wait_for(seconds: float, work: Awaitable[T]) -> T:
    """Wait for `work`; raises asyncio.TimeoutError after `seconds`.

    If this process was stalled meanwhile, `work` gets STALL_GRACE_S more.
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
