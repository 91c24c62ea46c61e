"""Computes missing vectors of documents in the background."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from sluice.common.contracts.rag import RagKeys
from sluice.worker.execution.concurrency import call_in_thread
from sluice.worker.features.embedding.types import Embedder
from sluice.worker.features.rag.index.cache import NO_VECTORS, NamespaceCache, NamespaceIndex
from sluice.worker.features.rag.ingest import texts_to_embed
from sluice.worker.features.rag.store import RagStore
from sluice.worker.features.rag.vectors.base import pack_vectors

log = logging.getLogger(__name__)

#: Pause after an error: the embedder or Redis may be unavailable.
ERROR_PAUSE_S: Final = 30.0


class VectorBackfill:
    """Completes the vectors of namespaces that are searched; `enqueue` adds one.

    Vectors are missing for documents ingested without an embedder, or with another one.
    """

    def __init__(
        self,
        store: RagStore,
        cache: NamespaceCache,
        embedder: Embedder,
        pause_s: float = ERROR_PAUSE_S,
    ) -> None:
        self._store = store
        self._cache = cache
        self._embedder = embedder
        self._pause_s = pause_s
        self._pending: dict[RagKeys, NamespaceIndex] = {}
        self._woken = asyncio.Event()

    def enqueue(self, index: NamespaceIndex) -> None:
        absent = index.vectors is not None and index.vectors.missing
        if index.embedder and (absent or index.without_vectors):
            self._pending[index.keys] = index
            self._woken.set()

    async def run(self) -> None:
        """Process queued namespaces, until canceled."""
        while True:
            await self._woken.wait()
            try:
                await self.run_once()
            except Exception as error:
                log.warning("vector backfill failed, retrying: %s", error)
                await asyncio.sleep(self._pause_s)

    async def run_once(self) -> None:
        """Process all queued namespaces."""
        while self._pending:
            keys, index = next(iter(self._pending.items()))
            # After an error the next namespace follows; a search queues this one again.
            del self._pending[keys]
            await self._backfill_namespace(keys, index)
        self._woken.clear()

    async def _backfill_namespace(self, keys: RagKeys, index: NamespaceIndex) -> None:
        if index.vectors is not None and index.vectors.missing:
            await index.vectors.share(sorted(index.vectors.missing), index.embedder)
        names = index.without_vectors
        failed: Exception | None = None
        # In random order, because other workers do the same.
        for document_id in random.sample(names, len(names)):
            try:
                await self._embed(keys, document_id)
            except Exception as error:  # the other documents are still processed
                failed = error
        if failed is not None:
            raise failed

    async def _embed(self, keys: RagKeys, document_id: str) -> None:
        found = await self._store.vectors(keys, [document_id])
        if not found or found[0].record.embedder == self._embedder.name:
            return  # deleted, or embedded by another worker
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
