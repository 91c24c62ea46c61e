"""Gives documents the vectors that they lack, one after the other, beside the jobs."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from common.contracts.rag import RagKeys
from worker.embedding.types import Embedder
from worker.rag.ingest import embedded_texts
from worker.rag.shelf import Shelf
from worker.rag.shelves import NO_ROWS, Shelves
from worker.rag.store import RagStore
from worker.rag.vectors import pack
from worker.threads import call_in_thread

log = logging.getLogger(__name__)

#: How long it waits after something went wrong: the embedder, or Redis, may be away.
PAUSE_S: Final = 30.0


class CatchingUp:
    """Looks after namespaces that somebody searches; `notice` tells it of one.

    Documents lack vectors that were taken in while there was no embedder, or another one.
    """

    def __init__(
        self, store: RagStore, shelves: Shelves, embedder: Embedder, pause_s: float = PAUSE_S
    ) -> None:
        self._store = store
        self._shelves = shelves
        self._embedder = embedder
        self._pause_s = pause_s
        self._waiting: dict[RagKeys, Shelf] = {}
        self._woken = asyncio.Event()

    def notice(self, shelf: Shelf) -> None:
        """A namespace was opened."""
        absent = shelf.nearness is not None and shelf.nearness.absent
        if shelf.embedder and (absent or shelf.without_vectors):
            self._waiting[shelf.keys] = shelf
            self._woken.set()

    async def run(self) -> None:
        """Do what there is to do, for ever."""
        while True:
            await self._woken.wait()
            try:
                await self.run_once()
            except Exception as error:
                log.warning("documents still wait for vectors: %s", error)
                await asyncio.sleep(self._pause_s)

    async def run_once(self) -> None:
        """Give all documents that are known to lack vectors theirs."""
        while self._waiting:
            keys, shelf = next(iter(self._waiting.items()))
            # Whatever goes wrong, the next namespace has its turn; a search brings this one back.
            del self._waiting[keys]
            await self._look_after(keys, shelf)
        self._woken.clear()

    async def _look_after(self, keys: RagKeys, shelf: Shelf) -> None:
        if shelf.nearness is not None and shelf.nearness.absent:
            await shelf.nearness.share(sorted(shelf.nearness.absent), shelf.embedder)
        names = shelf.without_vectors
        failed: Exception | None = None
        # Other workers do the same, in another order.
        for document_id in random.sample(names, len(names)):
            try:
                await self._embed(keys, document_id)
            except Exception as error:  # one document that cannot be done holds up no other
                failed = error
        if failed is not None:
            raise failed

    async def _embed(self, keys: RagKeys, document_id: str) -> None:
        found = await self._store.vectors(keys, [document_id])
        if not found or found[0].record.embedder == self._embedder.name:
            return  # gone, or somebody else was faster
        raw_record, record, _ = found[0]
        for stored in await self._store.texts(keys, [document_id]):
            if stored.record != record or not stored.chunks:
                return
            texts = await call_in_thread(embedded_texts, record, stored.text, stored.chunks)
            rows = await call_in_thread(pack, await self._embedder.embed(texts))
            embedder = self._embedder.name
            if await self._store.attach(keys, raw_record, record, embedder, rows.data):
                after = record.embedded_by(embedder)
                await self._shelves.changed(keys, [record], after, rows or NO_ROWS)
