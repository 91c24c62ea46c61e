"""Runs BullMQ scripts, and batches the completions of jobs.

Replies of Redis arrive in groups, and each lets a job end, which is a call. One call per job costs
more than its work. One call for all jobs would leave Redis idle while the worker runs them, and the
worker idle while Redis does. So a few completions share one call.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from redis.exceptions import RedisError

from sluice.common.errors import StoreUnavailable
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.pipelined import CommandClient
from sluice.common.redis.scripts import is_transient, run_packed
from sluice.worker.bullmq.scripts import JobCompletion, QueueScripts, ScriptCall

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 0.5


class ScriptClient:
    """Runs the scripts of a queue on one connection, by digest if Redis has them cached."""

    def __init__(self, connection: CommandClient) -> None:
        self.connection = connection

    async def call(self, call: ScriptCall) -> Any:
        """Returns the raw reply; raises the error of Redis or of the network."""
        return await run_packed(self.connection, call.script, call.packed)


async def retry_until(operation: Callable[[], Awaitable[Any]], until: float) -> Any:
    """Retry while Redis is unavailable, until `time.monotonic()` reaches `until`; then raises
    StoreUnavailable."""
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await operation()
        except (RedisError, *TRANSIENT_ERRORS) as error:
            if not is_transient_error(error) or time.monotonic() + pause_s > until:
                raise StoreUnavailable(str(error)) from error
            log.warning("redis: %s; retrying in %.2f s", error, pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def is_transient_error(error: Exception) -> bool:
    """True for an error that may pass: Redis is unavailable, loading, or out of memory."""
    return isinstance(error, TRANSIENT_ERRORS) or is_transient(str(error))


#: Completions that share one call, unless the tick of the event loop ends sooner.
MOST_PER_BATCH: Final = 8

PendingCompletions = list[tuple[JobCompletion, "asyncio.Future[Any]"]]


class CompletionBatcher:
    """Collects the completions of one tick of the loop, and returns each its own reply."""

    def __init__(self, client: ScriptClient, scripts: QueueScripts) -> None:
        self._client = client
        self._scripts = scripts
        self._pending: PendingCompletions = []
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, end: JobCompletion) -> asyncio.Future[Any]:
        """A future with the script's reply, or with the error of Redis or of the network."""
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
                if answered.done():  # the caller was canceled
                    continue
                if isinstance(answer, BaseException):
                    answered.set_exception(answer)
                else:
                    answered.set_result(answer)
