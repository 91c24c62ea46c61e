"""All documents and what can be done with them; a service that handlers and tools share.

What it takes to read, cut and search them is imported when somebody first does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from common.contracts.rag import RagKeys, SearchMode
from worker.services import House, Service

if TYPE_CHECKING:
    from common.rag_ontology import TermEntry
    from common.rag_store import DocumentRecord
    from worker.embedding.types import Embedder
    from worker.rag.catching_up import CatchingUp
    from worker.rag.citing import Citation
    from worker.rag.ingest import Ingest
    from worker.rag.search import Found, Hit, Searcher
    from worker.rag.shelves import Shelves, Watch
    from worker.rag.store import RagStore


class Library(Service):
    """Open from the worker's start to its end."""

    def __init__(self, embedder: Embedder, most_documents: int) -> None:
        self._embedder = embedder
        self._most_documents = most_documents
        #: Whether there are shelves, which somebody has to look after.
        self._opened = asyncio.Event()

    async def start(self, house: House) -> None:
        """Open it; nothing is read before it is needed."""
        self._tag = house.keys.tag
        self._redis = house.redis

    async def run(self) -> None:
        """Give documents the vectors that they lack."""
        await self._opened.wait()
        await self._catching_up.run()

    async def close(self) -> None:
        """Stop whatever is being read."""
        if self._opened.is_set():
            await self._shelves.close()

    @cached_property
    def _store(self) -> RagStore:
        from worker.rag.store import RagStore

        return RagStore(self._redis, self._most_documents)

    @cached_property
    def _shelves(self) -> Shelves:
        from worker.rag.shelves import Shelves

        self._opened.set()
        return Shelves(self._redis, self._store)

    @cached_property
    def _catching_up(self) -> CatchingUp:
        from worker.rag.catching_up import CatchingUp

        return CatchingUp(self._store, self._shelves, self._embedder)

    @cached_property
    def _searcher(self) -> Searcher:
        from worker.rag.search import Searcher

        return Searcher(self._store, self._shelves, self._embedder, self._catching_up.notice)

    @cached_property
    def ingest(self) -> Ingest:
        """Who takes documents in, and away."""
        from worker.rag.ingest import Ingest

        return Ingest(self._store, self._shelves, self._embedder)

    def keys(self, ns: str, tenant: str) -> RagKeys:
        """The keys of a tenant's namespace."""
        return RagKeys(ns, tenant, self._tag)

    async def find(
        self,
        keys: RagKeys,
        query: str,
        k: int,
        mode: SearchMode = SearchMode.AUTO,
        watch: Watch | None = None,
    ) -> Found:
        """The best `k` chunks, and how they were found."""
        return await self._searcher.find(keys, query, k, mode, watch)

    async def search(
        self, tenant: str, ns: str, query: str, k: int, mode: SearchMode = SearchMode.AUTO
    ) -> list[Hit]:
        """The best `k` chunks of a tenant's namespace."""
        return (await self.find(self.keys(ns, tenant), query, k, mode)).hits

    async def ontology(self, keys: RagKeys) -> list[TermEntry]:
        """The terms that a namespace knows."""
        return await self._store.ontology(keys)

    async def records(self, keys: RagKeys, document_ids: Sequence[str]) -> list[DocumentRecord]:
        """What is known of those documents that are there."""
        return await self._store.records(keys, document_ids) if document_ids else []

    async def removed(self, keys: RagKeys, records: Sequence[DocumentRecord]) -> None:
        """Somebody has taken documents away: so are the vectors that all workers see."""
        await self._shelves.changed(keys, records)

    async def verified(self, keys: RagKeys, citations: Sequence[Citation]) -> list[Citation]:
        """Those of the citations whose documents say just that at this moment."""
        from worker.rag.store import ByteSpan

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
