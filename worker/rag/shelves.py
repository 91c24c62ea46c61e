"""The namespaces that a worker has in memory: opened when needed, the least used closed first."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from common.cancellation import cancel
from common.contracts.rag import RagKeys
from common.rag_store import DocumentRecord
from worker.errors import TransientError
from worker.rag.nearness import Nearness, name_of
from worker.rag.shelf import Shelf
from worker.rag.store import RagStore
from worker.rag.vector_set import VectorSet, has_vector_sets
from worker.rag.vectors import OtherDimensions, Packed, Vectors, have_numpy, in_memory

log = logging.getLogger(__name__)

#: Memory that all of them may take together; a larger one stays alone.
MOST_BYTES: Final = 256 * 1024 * 1024
#: How many there may be; asking for one that does not exist opens it, too.
MOST_OPEN: Final = 256
#: How often somebody who waits for a namespace to be read is told how far that is.
TELL_EVERY_S: Final = 1.0

NO_ROWS: Final = Packed(b"", 0)

#: Told how many documents have been read, and of how many.
Watch = Callable[[int, int], Awaitable[None]]


@dataclass
class _Open:
    shelf: Shelf
    refreshing: asyncio.Task[None] | None = None

    @property
    def is_refreshing(self) -> bool:
        return self.refreshing is not None and not self.refreshing.done()


class Shelves:
    """Opens namespaces and keeps them up to date."""

    def __init__(self, redis: Redis, store: RagStore, most_bytes: int = MOST_BYTES) -> None:
        self._redis = redis
        self._store = store
        self._most_bytes = most_bytes
        self._open: OrderedDict[RagKeys, _Open] = OrderedDict()
        self._opening = asyncio.Lock()
        #: Whether Redis keeps vectors for us; unknown before the first look.
        self._has_sets: bool | None = None

    async def open(self, keys: RagKeys, embedder: str = "", watch: Watch | None = None) -> Shelf:
        """A namespace as it was when this was called, or newer."""
        version = await self._store.version(keys)
        opened = await self._get(keys)
        shelf = opened.shelf
        while _is_behind(shelf, version, embedder):
            await self._wait(opened, embedder, watch)
            if shelf.version > version:
                break
            # Its last document may have gone meanwhile, and its version with it.
            version = min(version, await self._store.version(keys))
        self._close_unused(keys)
        return shelf

    async def changed(
        self,
        keys: RagKeys,
        before: Sequence[DocumentRecord],
        record: DocumentRecord | None = None,
        rows: Packed = NO_ROWS,
    ) -> None:
        """A document was stored or deleted: tell those vectors that all workers see.

        What goes wrong here is put right by whoever opens the namespace next.
        """
        try:
            vectors = await self._vectors(keys)
            if vectors is None or not vectors.shared:
                return
            if record is not None and rows.rows:
                await vectors.add(name_of(record), rows)
            for old in before:
                if old.embedder and (record is None or name_of(old) != name_of(record)):
                    await vectors.remove(name_of(old))
        except (RedisError, OSError, OtherDimensions, TransientError) as error:
            log.warning("the vectors of namespace %s are behind: %s", keys.namespace, error)

    @property
    def opened(self) -> list[Shelf]:
        """Those in memory, the least used first."""
        return [each.shelf for each in self._open.values()]

    async def close(self) -> None:
        """Stop reading."""
        reading = [each.refreshing for each in self._open.values() if each.refreshing is not None]
        await cancel(*reading)
        self._open.clear()

    async def _get(self, keys: RagKeys) -> _Open:
        async with self._opening:
            found = self._open.get(keys)
            if found is None:
                vectors = await self._vectors(keys)
                nearness = None if vectors is None else Nearness(self._store, keys, vectors)
                found = self._open[keys] = _Open(Shelf(self._store, keys, nearness))
        self._open.move_to_end(keys)
        return found

    async def _vectors(self, keys: RagKeys) -> Vectors | None:
        if self._has_sets is None:
            try:
                self._has_sets = await has_vector_sets(self._redis, keys.vector_set)
            except (RedisError, OSError) as error:
                raise TransientError(f"Redis is away: {error}") from error
        if self._has_sets:
            return VectorSet(self._redis, keys.vector_set)
        return in_memory() if have_numpy() else None

    async def _wait(self, opened: _Open, embedder: str, watch: Watch | None) -> None:
        """Wait for the reading that is under way, or begin one. It outlives its callers."""
        if not opened.is_refreshing:
            opened.refreshing = asyncio.create_task(opened.shelf.refresh(embedder))
            opened.refreshing.add_done_callback(_ask)
        refreshing = opened.refreshing
        assert refreshing is not None
        while not refreshing.done():
            await asyncio.wait({refreshing}, timeout=TELL_EVERY_S)
            if not refreshing.done() and watch is not None:
                await watch(opened.shelf.loaded, opened.shelf.total)
        refreshing.result()

    def _close_unused(self, kept: RagKeys) -> None:
        total = sum(each.shelf.size_bytes for each in self._open.values())
        for keys, each in list(self._open.items()):
            if total <= self._most_bytes and len(self._open) <= MOST_OPEN:
                return
            if keys != kept and not each.is_refreshing:
                total -= each.shelf.size_bytes
                del self._open[keys]


def _is_behind(shelf: Shelf, version: int, embedder: str) -> bool:
    return shelf.version != version or shelf.embedder != embedder


def _ask(task: asyncio.Task[None]) -> None:
    """Whoever waited may be gone; an error that nobody asks for would be complained about."""
    if not task.cancelled():
        task.exception()
