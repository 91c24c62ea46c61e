"""Questions to Redis by name, many callers', one command at a time.

What is asked for while one is under way goes together in the next. So a storm of made-up keys or
sessions costs Redis no more than one small command under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from common.aio import cancel, wait_for
from common.errors import SluiceError, StoreUnavailable

log = logging.getLogger(__name__)

#: How long Redis may take to answer.
READ_TIMEOUT_S = 2.5
#: Names asked for at once.
MAX_BATCH = 256

Found = TypeVar("Found")


class BatchedLookup(Generic[Found]):
    """`read` gets names, and returns what it found for each."""

    def __init__(self, read: Callable[[list[str]], Awaitable[Sequence[Found]]]) -> None:
        self._read = read
        #: Names that somebody waits for, whether asked for already or next.
        self._awaited: dict[str, asyncio.Future[Found]] = {}
        self._next: list[str] = []
        self._reading: asyncio.Task[None] | None = None

    async def get(self, name: str) -> Found:
        """What there is of that name. Raises StoreUnavailable when nobody knows."""
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
            for awaited in self._awaited.values():  # only where it was canceled
                awaited.cancel()
            self._awaited.clear()

    async def _read_batch(self, batch: list[str]) -> None:
        try:
            found = await wait_for(READ_TIMEOUT_S, self._read(batch))
        except Exception as error:  # whatever it is, nobody gets in by it, and nobody waits on
            if not isinstance(error, (SluiceError, asyncio.TimeoutError)):
                log.exception("who somebody is could not be read")
            fault = StoreUnavailable(str(error) or "no answer in time")
            for name in batch:
                awaited = self._awaited.pop(name)
                awaited.set_exception(fault)
                awaited.exception()  # whoever asked may have left
            return
        for name, one in zip(batch, found):
            self._awaited.pop(name).set_result(one)
