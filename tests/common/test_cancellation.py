"""common.aio.cancel: tasks end even if they swallow a cancellation."""

from __future__ import annotations

import asyncio
import contextlib

from common.aio import cancel


async def test_a_task_that_swallows_a_cancellation() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
            swallowed += 1
            if swallowed == 2:
                await asyncio.sleep(3600)

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await asyncio.wait_for(cancel(task), 5)
    assert task.cancelled()
    assert swallowed == 2


async def test_tasks_that_have_ended_or_fail() -> None:
    async def fail() -> None:
        raise ValueError

    async def fail_late() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise ValueError

    early, late = asyncio.create_task(fail()), asyncio.create_task(fail_late())
    await asyncio.sleep(0)
    await cancel(early, late)
    assert early.done()
    assert isinstance(late.exception(), ValueError)
    await cancel()
