"""The runner of BullMQ scripts with a slow or unavailable Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from sluice.common.aio import STALL_THRESHOLD_S
from sluice.common.errors import StoreUnavailable
from sluice.common.features.bullmq.scripts import ScriptRunner
from sluice.common.redis.scripts import plain_script

NOTHING = plain_script("return {}")


class Slow:
    """A connection whose reply arrives when the test decides."""

    ready = False

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.reply: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    async def execute_command(self, *args: Any) -> Any:
        self.asked.set()
        return await self.reply


def run(wire: Any, timeout_s: float) -> Coroutine[Any, Any, Any]:
    return ScriptRunner(wire, timeout_s).run(NOTHING, [], [], repeatable=False)


async def test_a_redis_without_a_reply_times_out() -> None:
    wire = Slow()
    with pytest.raises(StoreUnavailable, match="no answer in time"):
        await run(wire, 0.01)
    assert wire.asked.is_set()


async def test_a_stall_of_this_process_is_not_a_timeout() -> None:
    """The reply is in the socket, but the timer fires first."""
    loop, wire = asyncio.get_running_loop(), Slow()
    running = asyncio.create_task(run(wire, STALL_THRESHOLD_S))
    await wire.asked.wait()
    loop.call_soon(time.sleep, 3 * STALL_THRESHOLD_S)  # this process is stalled
    loop.call_later(2 * STALL_THRESHOLD_S, wire.reply.set_result, ["late"])
    assert await running == ["late"]
