"""sluice.common.aio: cancellation, and timeouts that tolerate a stall of this process."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from sluice.common.aio import STALL_THRESHOLD_S, cancel, wait_for


async def test_an_answer_in_time() -> None:
    async def answers() -> str:
        await asyncio.sleep(0)
        return "here"

    assert await wait_for(5, answers()) == "here"


async def test_no_answer_in_time() -> None:
    ended: list[BaseException] = []

    async def is_silent() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            ended.append(error)
            raise

    with pytest.raises(asyncio.TimeoutError):
        await wait_for(0.01, is_silent())
    await asyncio.sleep(0)
    assert len(ended) == 1


async def test_a_stall_of_this_process_is_not_a_timeout() -> None:
    """The answer is in the socket, but the timer fires first."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[str] = loop.create_future()

    async def is_answered() -> str:
        loop.call_soon(time.sleep, 3 * STALL_THRESHOLD_S)  # this process is stalled
        loop.call_later(2 * STALL_THRESHOLD_S, answered.set_result, "late")
        return await answered

    assert await wait_for(STALL_THRESHOLD_S, is_answered()) == "late"


async def test_an_error_is_raised() -> None:
    async def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await wait_for(5, fails())


async def test_the_caller_may_be_canceled() -> None:
    begun = asyncio.Event()
    ended = asyncio.Event()

    async def lasts() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    waiting = asyncio.create_task(wait_for(60, lasts()))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(ended.wait(), 5)


# -- cancel: tasks end even if they swallow a cancellation -----------------------------


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
