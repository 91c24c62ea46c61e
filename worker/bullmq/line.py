"""Sends BullMQ's scripts to Redis over a pipelined connection."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from redis.exceptions import NoScriptError, RedisError

from common.connection import TRANSIENT_ERRORS
from common.errors import StoreUnavailable
from common.scripts import is_passing
from common.wire import Commander
from worker.bullmq.scripts import Call

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 0.5


class ScriptLine:
    """One connection for all scripts of a queue; each by its name, and in full where need be."""

    def __init__(self, wire: Commander) -> None:
        self.wire = wire

    async def call(self, call: Call) -> Any:
        """A script's reply as Redis wrote it; raises what Redis or the network answered."""
        script, given = call
        try:
            return await self.wire.execute_command("EVALSHA", script.sha, *given)
        except NoScriptError:
            return await self.wire.execute_command("EVAL", script.source, *given)


async def insist(say: Callable[[], Awaitable[Any]], until: float) -> Any:
    """Say something again and again while Redis cannot, until that moment of `time.monotonic`."""
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await say()
        except (RedisError, *TRANSIENT_ERRORS) as error:
            if not passes(error) or time.monotonic() + pause_s > until:
                raise StoreUnavailable(str(error)) from error
            log.warning("redis: %s; said again in %.2f s", error, pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def passes(error: Exception) -> bool:
    """Whether trouble with Redis is over by itself: it is away, loading, out of memory."""
    return isinstance(error, TRANSIENT_ERRORS) or is_passing(str(error))
