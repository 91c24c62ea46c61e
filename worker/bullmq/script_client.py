"""Jobs that end well, told to Redis a few at a time.

The answers of Redis come many at once, each ends a job, and each end is a call. A call for each
costs Redis and us more than what it does. One for all would let Redis do nothing while we work,
and us while Redis does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from redis.exceptions import RedisError

from common.errors import StoreUnavailable
from common.redis.connection import TRANSIENT_ERRORS
from common.redis.pipelined import CommandClient
from common.redis.scripts import is_transient, run_packed
from worker.bullmq.scripts import JobCompletion, QueueScripts, ScriptCall

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 0.5


class ScriptClient:
    """One connection for all scripts of a queue; each by its name, and in full where need be."""

    def __init__(self, connection: CommandClient) -> None:
        self.connection = connection

    async def call(self, call: ScriptCall) -> Any:
        """A script's reply as Redis wrote it; raises what Redis or the network answered."""
        return await run_packed(self.connection, call.script, call.given)


async def retry_until(operation: Callable[[], Awaitable[Any]], until: float) -> Any:
    """Say something again and again while Redis cannot, until that moment of `time.monotonic`."""
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await operation()
        except (RedisError, *TRANSIENT_ERRORS) as error:
            if not is_transient_error(error) or time.monotonic() + pause_s > until:
                raise StoreUnavailable(str(error)) from error
            log.warning("redis: %s; said again in %.2f s", error, pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def is_transient_error(error: Exception) -> bool:
    """Whether trouble with Redis is over by itself: it is away, loading, out of memory."""
    return isinstance(error, TRANSIENT_ERRORS) or is_transient(str(error))


#: Jobs that are told together, unless the turn of the event loop ends sooner.
MOST_PER_BATCH: Final = 8

PendingCompletions = list[tuple[JobCompletion, "asyncio.Future[Any]"]]


class CompletionBatcher:
    """Gathers the ends of one turn; each gets the answer that is its own."""

    def __init__(self, client: ScriptClient, scripts: QueueScripts) -> None:
        self._client = client
        self._scripts = scripts
        self._pending: PendingCompletions = []
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, end: JobCompletion) -> asyncio.Future[Any]:
        """What the script answers; raises what Redis or the network did instead."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Any] = loop.create_future()
        pending = self._pending
        pending.append((end, answered))
        if len(pending) >= MOST_PER_BATCH:
            self._send(pending)
        elif len(pending) == 1:
            loop.call_soon(self._send, pending)
        return answered

    def _send(self, pending: PendingCompletions) -> None:
        if self._pending is pending:
            self._pending = []
            task = asyncio.get_running_loop().create_task(self._send_batch(pending))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_batch(self, pending: PendingCompletions) -> None:
        try:
            call = self._scripts.complete([end for end, _ in pending])
            answers = await self._client.call(call)
        except BaseException as error:
            answers = [error] * len(pending)
            if not isinstance(error, Exception):
                raise
        finally:
            for (_, answered), answer in zip(pending, answers):
                if answered.done():  # whoever asked has left
                    continue
                if isinstance(answer, BaseException):
                    answered.set_exception(answer)
                else:
                    answered.set_result(answer)
