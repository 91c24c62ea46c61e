"""Gives documents the vectors that they lack, one after the other, beside the jobs."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from common.contracts.rag import RagKeys
from worker.execution.concurrency import call_in_thread
from worker.features.embedding.types import Embedder
from worker.features.rag.index.cache import NO_VECTORS, NamespaceCache, NamespaceIndex
from worker.features.rag.ingest import texts_to_embed
from worker.features.rag.store import RagStore
from worker.features.rag.vectors.base import pack_vectors

log = logging.getLogger(__name__)

#: How long it waits after something went wrong: the embedder, or Redis, may be away.
ERROR_PAUSE_S: Final = 30.0


class VectorBackfill:
    """Looks after namespaces that somebody searches; `notice` tells it of one.

    Documents lack vectors that were taken in while there was no embedder, or another one.
    """

    def __init__(
        self,
        store: RagStore,
        shelves: NamespaceCache,
        embedder: Embedder,
        pause_s: float = ERROR_PAUSE_S,
    ) -> None:
        self._store = store
        self._cache = shelves
        self._embedder = embedder
        self._pause_s = pause_s
        self._pending: dict[RagKeys, NamespaceIndex] = {}
        self._woken = asyncio.Event()

    def enqueue(self, shelf: NamespaceIndex) -> None:
        absent = shelf.vectors is not None and shelf.vectors.missing
        if shelf.embedder and (absent or shelf.without_vectors):
            self._pending[shelf.keys] = shelf
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
        while self._pending:
            keys, shelf = next(iter(self._pending.items()))
            # Whatever goes wrong, the next namespace has its turn; a search brings this one back.
            del self._pending[keys]
            await self._backfill_namespace(keys, shelf)
        self._woken.clear()

    async def _backfill_namespace(self, keys: RagKeys, shelf: NamespaceIndex) -> None:
        if shelf.vectors is not None and shelf.vectors.missing:
            await shelf.vectors.share(sorted(shelf.vectors.missing), shelf.embedder)
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
            texts = await call_in_thread(texts_to_embed, record, stored.text, stored.chunks)
            rows = await call_in_thread(pack_vectors, await self._embedder.embed(texts))
            embedder = self._embedder.name
            if await self._store.attach(keys, raw_record, record, embedder, rows.data):
                after = record.with_embedder(embedder)
                await self._cache.changed(keys, [record], after, rows or NO_VECTORS)
