"""Batched lookups in Redis by name: one command at a time, shared by all callers.

Names requested while a command is in flight form the next batch. A flood of invalid keys or
sessions therefore never causes more than one small command in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from sluice.common.aio import cancel, wait_for
from sluice.common.errors import SluiceError, StoreUnavailable

log = logging.getLogger(__name__)

#: Timeout of one batch, in seconds.
READ_TIMEOUT_S = 2.5
#: Maximum number of names in one batch.
MAX_BATCH = 256

Found = TypeVar("Found")


class BatchedLookup(Generic[Found]):
    """Looks up names in batches; `read` takes names and returns one result for each, in order."""

    def __init__(self, read: Callable[[list[str]], Awaitable[Sequence[Found]]]) -> None:
        self._read = read
        #: Names with waiting callers, in flight or in the next batch.
        self._awaited: dict[str, asyncio.Future[Found]] = {}
        self._next: list[str] = []
        self._reading: asyncio.Task[None] | None = None

    async def get(self, name: str) -> Found:
        """The result for a name. Raises StoreUnavailable if the read fails or times out."""
        awaited = self._awaited.get(name)
        if awaited is None:
            awaited = asyncio.get_running_loop().create_future()
            self._awaited[name] = awaited
            self._next.append(name)
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_all())
        return await asyncio.shield(awaited)

    async def close(self) -> None:
        if self._reading is not None:
            await cancel(self._reading)

    async def _read_all(self) -> None:
        try:
            while self._next:
                batch, self._next = self._next[:MAX_BATCH], self._next[MAX_BATCH:]
                await self._read_batch(batch)
        finally:
            self._reading = None
            for awaited in self._awaited.values():  # not empty only if this task was cancelled
                awaited.cancel()
            self._awaited.clear()

    async def _read_batch(self, batch: list[str]) -> None:
        try:
            found = await wait_for(READ_TIMEOUT_S, self._read(batch))
        except Exception as error:  # fail closed on any error, and release all waiting callers
            if not isinstance(error, (SluiceError, asyncio.TimeoutError)):
                log.exception("API key or session lookup failed")
            fault = StoreUnavailable(str(error) or "no answer in time")
            for name in batch:
                awaited = self._awaited.pop(name)
                awaited.set_exception(fault)
                awaited.exception()  # mark as retrieved: the waiting request may be gone
            return
        for name, one in zip(batch, found):
            self._awaited.pop(name).set_result(one)
