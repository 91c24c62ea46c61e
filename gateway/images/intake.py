"""An upload on its way to the spool: gathered on the loop, written and hashed in a thread.

Two blocks of it are in memory at a time, one that is gathered and one that is written, however
long it is and however slow the disk: while the disk is behind, nothing more is read.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Executor
from typing import Final

from gateway.images.sinks import Received, Sink

#: So much goes to a thread at once.
BLOCK_BYTES: Final = 1 << 20


class Intake:
    """One upload."""

    def __init__(self, sink: Sink, threads: Executor) -> None:
        self._sink = sink
        self._threads = threads
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._writing: asyncio.Future[None] | None = None
        #: Bytes that came, whether they were written or not.
        self.size_bytes = 0

    async def take(self, data: bytes) -> None:
        """The next piece; raises what befell an earlier one."""
        self.size_bytes += len(data)
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= BLOCK_BYTES:
            await self._hand_over()

    async def finish(self) -> Received:
        """That was all of it; the file is there, durably, when this returns."""
        await self._hand_over()
        await self._written()
        loop = asyncio.get_running_loop()
        finishing = loop.run_in_executor(self._threads, self._sink.finish)
        self._writing = asyncio.ensure_future(_ended(finishing))
        return await asyncio.shield(finishing)

    async def discard(self) -> None:
        """Nothing comes of it: the file is gone when this returns."""
        if self._writing is not None:
            with contextlib.suppress(Exception):
                await self._writing  # nothing may be written to a file that was closed
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._sink.discard)

    async def _hand_over(self) -> None:
        await self._written()
        block = b"".join(self._gathered)
        self._gathered.clear()
        self._gathered_bytes = 0
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(self._threads, self._sink.feed, block)

    async def _written(self) -> None:
        if self._writing is not None:
            # Whoever is canceled here leaves a thread at work, which `discard` waits for.
            await asyncio.shield(self._writing)


async def _ended(finishing: asyncio.Future[Received]) -> None:
    await asyncio.wait({finishing})
