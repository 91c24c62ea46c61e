"""Documents of a worker: ingestion, search and backfill; shared by handlers and tools."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property

from sluice.common.contracts.rag import RagKeys, SearchMode
from sluice.common.features.rag.documents import DocumentRecord
from sluice.common.features.rag.ontology import TermEntry
from sluice.worker.features.embedding.types import Embedder
from sluice.worker.features.rag.answering import Citation
from sluice.worker.features.rag.backfill import VectorBackfill
from sluice.worker.features.rag.index.cache import NamespaceCache, OnLoadProgress
from sluice.worker.features.rag.ingest import Ingest
from sluice.worker.features.rag.search import Hit, Searcher, SearchResult
from sluice.worker.features.rag.store import ByteSpan, RagStore
from sluice.worker.registry import Service, WorkerServices


class RagService(Service):
    """Runs from the worker's start to its end; builds its parts on demand."""

    def __init__(self, embedder: Embedder, most_documents: int) -> None:
        self._embedder = embedder
        self._most_documents = most_documents
        #: Set once the cache exists and the backfill has work.
        self._cache_created = asyncio.Event()

    async def start(self, services: WorkerServices) -> None:
        self._tag = services.keys.tag
        self._redis = services.redis

    async def run(self) -> None:
        """Backfill missing vectors."""
        await self._cache_created.wait()
        await self._backfill.run()

    async def close(self) -> None:
        if self._cache_created.is_set():
            await self._cache.close()

    @cached_property
    def _store(self) -> RagStore:
        return RagStore(self._redis, self._most_documents)

    @cached_property
    def _cache(self) -> NamespaceCache:
        self._cache_created.set()
        return NamespaceCache(self._redis, self._store)

    @cached_property
    def _backfill(self) -> VectorBackfill:
        return VectorBackfill(self._store, self._cache, self._embedder)

    @cached_property
    def _searcher(self) -> Searcher:
        return Searcher(self._store, self._cache, self._embedder, self._backfill.enqueue)

    @cached_property
    def ingest(self) -> Ingest:
        """Adds and removes documents."""
        return Ingest(self._store, self._cache, self._embedder)

    def keys(self, ns: str, tenant: str) -> RagKeys:
        return RagKeys(ns, tenant, self._tag)

    async def find(
        self,
        keys: RagKeys,
        query: str,
        k: int,
        mode: SearchMode = SearchMode.AUTO,
        watch: OnLoadProgress | None = None,
    ) -> SearchResult:
        """The best `k` chunks, and how they were found."""
        return await self._searcher.find(keys, query, k, mode, watch)

    async def search(
        self, tenant: str, ns: str, query: str, k: int, mode: SearchMode = SearchMode.AUTO
    ) -> list[Hit]:
        return (await self.find(self.keys(ns, tenant), query, k, mode)).hits

    async def ontology(self, keys: RagKeys) -> list[TermEntry]:
        """The terms of a namespace."""
        return await self._store.ontology(keys)

    async def records(self, keys: RagKeys, document_ids: Sequence[str]) -> list[DocumentRecord]:
        """Records of those documents that exist."""
        return await self._store.records(keys, document_ids) if document_ids else []

    async def removed(self, keys: RagKeys, records: Sequence[DocumentRecord]) -> None:
        """Remove the shared vectors of documents that were deleted elsewhere."""
        await self._cache.changed(keys, records)

    async def verify_citations(
        self, keys: RagKeys, citations: Sequence[Citation]
    ) -> list[Citation]:
        """The citations whose documents still contain the quote."""
        spans = [
            ByteSpan(each.document_id, each.byte_start, each.byte_start + len(each.quote.encode()))
            for each in citations
        ]
        found = await self._store.cut(keys, spans)
        return [
            citation
            for citation, (record, quote) in zip(citations, found)
            if record is not None
            and record.revision == citation.revision
            and quote == citation.quote
        ]
