"""The scripts around BullMQ's: what their runner makes of a Redis that is slow, or away."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from redis.typing import EncodableT

from common.bullmq.scripts import Runner
from common.errors import StoreUnavailable
from common.patience import LATE_S
from common.scripts import script_of
from common.wire import OnReply

NOTHING = script_of("return {}")


class Slow:
    """A connection whose reply comes when the test says."""

    ready = False

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.reply: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def send(self, args: tuple[Any, ...], on_reply: OnReply) -> None:
        raise AssertionError("it is never ready")

    async def execute_command(self, *args: EncodableT) -> Any:
        self.asked.set()
        return await self.reply

    async def aclose(self) -> None:
        pass


async def test_a_redis_that_says_nothing_is_given_up() -> None:
    wire = Slow()
    with pytest.raises(StoreUnavailable, match="no answer in time"):
        await Runner(wire, 0.01).run(NOTHING, [], [], repeatable=False)
    assert wire.asked.is_set()


async def test_a_standstill_of_our_own_is_not_held_against_redis() -> None:
    """The reply lies in the socket, and the timer is heard first."""
    loop, wire = asyncio.get_running_loop(), Slow()
    running = asyncio.create_task(Runner(wire, LATE_S).run(NOTHING, [], [], repeatable=False))
    await wire.asked.wait()
    loop.call_soon(time.sleep, 3 * LATE_S)  # the machine has no time for us
    loop.call_later(2 * LATE_S, wire.reply.set_result, ["late"])
    assert await running == ["late"]
