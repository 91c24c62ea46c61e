"""Ending tasks for sure."""

from __future__ import annotations

import asyncio
from typing import Any

#: Seconds after which a task that is still there is canceled again.
AGAIN_S = 0.1


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended, however they did.

    Before Python 3.12 `asyncio.wait_for`, which redis-py uses, swallows a cancellation that comes
    together with the reply; once is not enough then.
    """
    remaining = set(tasks)
    while remaining:
        for task in remaining:
            task.cancel()
        _, remaining = await asyncio.wait(remaining, timeout=AGAIN_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # nobody else is going to ask
