"""Search indexes of namespaces in memory, updated incrementally from Redis."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from sluice.common.aio import cancel
from sluice.common.contracts.rag import RagKeys
from sluice.common.features.rag.documents import DocumentRecord
from sluice.worker.errors import TransientError
from sluice.worker.execution.concurrency import call_in_thread
from sluice.worker.features.rag.index.namespace import (
    ChunkIndex,
    IndexedDocument,
    ScoredChunk,
    prepare_document,
)
from sluice.worker.features.rag.index.ontology import Ontology, SynonymMatch
from sluice.worker.features.rag.store import RagStore, StoredText
from sluice.worker.features.rag.vectors.base import (
    DimensionMismatch,
    PackedVectors,
    VectorIndex,
    batch_by_size,
    have_numpy,
    new_memory_index,
)
from sluice.worker.features.rag.vectors.document_vectors import DocumentVectors, vector_name
from sluice.worker.features.rag.vectors.redis import RedisVectorIndex, has_vector_sets

#: Records read per batch.
MOST_RECORDS: Final = 256
#: Estimated bytes per character.
_CHAR_BYTES: Final = 2


class NamespaceIndex:
    """Index and vectors of one namespace.

    One `refresh` at a time; searches may run concurrently.
    """

    def __init__(
        self, store: RagStore, keys: RagKeys, document_vectors: DocumentVectors | None
    ) -> None:
        self.keys = keys
        self.vectors = document_vectors
        #: Version of the namespace that the index includes, and the embedder whose vectors it uses.
        self.version = 0
        self.embedder = ""
        #: Documents without vectors of that embedder.
        self.without_vectors: list[str] = []
        #: Number of documents in the namespace.
        self.total = 0
        self.ontology = Ontology()
        self._store = store
        self._index = ChunkIndex()
        #: Serialises access to the index from threads.
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Estimated memory."""
        vectors = self.vectors.size_bytes if self.vectors else 0
        return self._index.size_bytes + vectors + self.ontology.size_bytes

    @property
    def loaded(self) -> int:
        return len(self._index.documents)

    def get(self, document_id: str) -> IndexedDocument | None:
        return self._index.documents.get(document_id)

    async def synonyms(self, query: str) -> list[SynonymMatch]:
        """The parts of a query that have synonyms in the namespace's ontology."""
        if not self.ontology:
            return []
        found: list[SynonymMatch] = await call_in_thread(self._find, query)
        return found

    async def search(
        self, query: str, most: int, renamed: Sequence[SynonymMatch] = ()
    ) -> list[ScoredChunk]:
        """The best chunks by words and their synonyms."""
        found: list[ScoredChunk] = await call_in_thread(self._search, query, most, renamed)
        return found

    async def refresh(self, embedder: str) -> None:
        version = await self._store.version(self.keys)
        if version < self.version:  # deleted, and possibly created again
            await self._drop(list(self._index.documents))
            self.version = 0
        if embedder != self.embedder:
            self.embedder = embedder
            await self._update_vectors([each.record for each in self._index.documents.values()])
        await self._refresh_ontology()
        first = not self.version
        if version != self.version:
            await self._load_changes()
        records = [each.record for each in self._index.documents.values()]
        embedded = [record for record in records if record.embedder == embedder]
        if first and self.vectors is not None:
            await self.vectors.repair_shared(sum(record.chunks for record in embedded))
        self.without_vectors = [record.id for record in records if record.embedder != embedder]
        self.version = version

    async def _refresh_ontology(self) -> None:
        """Read the ontology if it has changed.

        Its version is read first, so that a concurrent change leads to another refresh.
        """
        version = await self._store.ontology_version(self.keys)
        if version != self.ontology.version:
            entries = await self._store.ontology(self.keys) if version else []
            self.ontology = Ontology(entries, version)

    async def _load_changes(self) -> None:
        since = self.version
        self.total = await self._store.count(self.keys)
        while batch := await self._store.changed(self.keys, since, MOST_RECORDS):
            await self._load([document_id for document_id, _ in batch])
            since = batch[-1][1]
        # All existing documents have been loaded. If the index has more, some were deleted.
        self.total = await self._store.count(self.keys)
        if self.loaded != self.total:
            await self._drop(self._index.documents.keys() - await self._store.ids(self.keys))

    async def _load(self, document_ids: Sequence[str]) -> None:
        records = await self._store.records(self.keys, document_ids)
        fresh = [record for record in records if not self._is_known(record)]
        for batch in batch_by_size(fresh, lambda record: record.chars * _CHAR_BYTES):
            names = [record.id for record in batch]
            await call_in_thread(self._put, await self._store.texts(self.keys, names))
        for record in records:
            indexed = self.get(record.id)
            if indexed is not None and indexed.record.revision == record.revision:
                indexed.record = record
        await self._update_vectors(records)

    async def _update_vectors(self, records: Sequence[DocumentRecord]) -> None:
        if self.vectors is not None:
            await self.vectors.update(records, self.embedder)

    async def _drop(self, document_ids: Collection[str]) -> None:
        if document_ids:
            await call_in_thread(self._remove, document_ids)
        if self.vectors is not None:
            for document_id in document_ids:
                await self.vectors.remove_document(document_id)

    def _is_known(self, record: DocumentRecord) -> bool:
        indexed = self.get(record.id)
        return indexed is not None and indexed.record.revision == record.revision

    # -- in a thread -------------------------------------------------------------------------------

    def _search(self, query: str, most: int, renamed: Sequence[SynonymMatch]) -> list[ScoredChunk]:
        with self._lock:
            return self._index.search(query, most, renamed)

    def _find(self, query: str) -> list[SynonymMatch]:
        with self._lock:
            return self.ontology.find(query, self._index.languages)

    def _put(self, stored: Sequence[StoredText]) -> None:
        for document in stored:
            prepared = prepare_document(document)
            with self._lock:
                self._index.put(prepared)

    def _remove(self, document_ids: Collection[str]) -> None:
        with self._lock:
            self._index.drop(document_ids)


log = logging.getLogger(__name__)

#: Memory of all cached indexes together; a larger one is kept alone.
MOST_BYTES: Final = 256 * 1024 * 1024
#: Limit of cached namespaces; a search of one that does not exist is cached, too.
MOST_CACHED: Final = 256
#: Interval of progress reports while a namespace is loaded.
PROGRESS_EVERY_S: Final = 1.0

NO_VECTORS: Final = PackedVectors(b"", 0)

#: Called with the numbers of documents loaded and in total.
OnLoadProgress = Callable[[int, int], Awaitable[None]]


@dataclass
class _CacheEntry:
    index: NamespaceIndex
    refreshing: asyncio.Task[None] | None = None

    @property
    def is_refreshing(self) -> bool:
        return self.refreshing is not None and not self.refreshing.done()


class NamespaceCache:
    """Caches the indexes of namespaces and keeps them up to date."""

    def __init__(self, redis: Redis, store: RagStore, most_bytes: int = MOST_BYTES) -> None:
        self._redis = redis
        self._store = store
        self._most_bytes = most_bytes
        self._open: OrderedDict[RagKeys, _CacheEntry] = OrderedDict()
        self._opening = asyncio.Lock()
        #: Whether Redis supports vector sets; None until checked.
        self._has_sets: bool | None = None

    async def open(
        self, keys: RagKeys, embedder: str = "", watch: OnLoadProgress | None = None
    ) -> NamespaceIndex:
        """The index of a namespace, at least as new as at the time of the call."""
        version = await self._store.version(keys)
        opened = await self._get(keys)
        index = opened.index
        while _is_stale(index, version, embedder):
            await self._wait(opened, embedder, watch)
            if index.version > version:
                break
            # If the last document was deleted meanwhile, the version was reset.
            version = min(version, await self._store.version(keys))
        self._evict(keys)
        return index

    async def changed(
        self,
        keys: RagKeys,
        before: Sequence[DocumentRecord],
        record: DocumentRecord | None = None,
        rows: PackedVectors = NO_VECTORS,
    ) -> None:
        """Update the shared vectors after a document was stored or deleted.

        A failure is only logged: the next worker that opens the namespace repairs it.
        """
        try:
            vectors = await self._vectors(keys)
            if vectors is None or not vectors.shared:
                return
            if record is not None and rows.rows:
                await vectors.add(vector_name(record), rows)
            for old in before:
                if old.embedder and (record is None or vector_name(old) != vector_name(record)):
                    await vectors.remove(vector_name(old))
        except (RedisError, OSError, DimensionMismatch, TransientError) as error:
            log.warning("namespace %s: could not update the vectors: %s", keys.namespace, error)

    @property
    def opened(self) -> list[NamespaceIndex]:
        """Cached indexes, least recently used first."""
        return [each.index for each in self._open.values()]

    async def close(self) -> None:
        reading = [each.refreshing for each in self._open.values() if each.refreshing is not None]
        await cancel(*reading)
        self._open.clear()

    async def _get(self, keys: RagKeys) -> _CacheEntry:
        async with self._opening:
            found = self._open.get(keys)
            if found is None:
                vectors = await self._vectors(keys)
                document_vectors = (
                    None if vectors is None else DocumentVectors(self._store, keys, vectors)
                )
                found = self._open[keys] = _CacheEntry(
                    NamespaceIndex(self._store, keys, document_vectors)
                )
        self._open.move_to_end(keys)
        return found

    async def _vectors(self, keys: RagKeys) -> VectorIndex | None:
        if self._has_sets is None:
            try:
                self._has_sets = await has_vector_sets(self._redis, keys.vector_set)
            except (RedisError, OSError) as error:
                raise TransientError(f"Redis is unavailable: {error}") from error
        if self._has_sets:
            return RedisVectorIndex(self._redis, keys.vector_set)
        return new_memory_index() if have_numpy() else None

    async def _wait(self, opened: _CacheEntry, embedder: str, watch: OnLoadProgress | None) -> None:
        """Wait for the current refresh, or start one. The refresh outlives its callers."""
        if not opened.is_refreshing:
            opened.refreshing = asyncio.create_task(opened.index.refresh(embedder))
            opened.refreshing.add_done_callback(_retrieve_exception)
        refreshing = opened.refreshing
        assert refreshing is not None
        while not refreshing.done():
            await asyncio.wait({refreshing}, timeout=PROGRESS_EVERY_S)
            if not refreshing.done() and watch is not None:
                await watch(opened.index.loaded, opened.index.total)
        refreshing.result()

    def _evict(self, kept: RagKeys) -> None:
        total = sum(each.index.size_bytes for each in self._open.values())
        for keys, each in list(self._open.items()):
            if total <= self._most_bytes and len(self._open) <= MOST_CACHED:
                return
            if keys != kept and not each.is_refreshing:
                total -= each.index.size_bytes
                del self._open[keys]


def _is_stale(index: NamespaceIndex, version: int, embedder: str) -> bool:
    return index.version != version or index.embedder != embedder


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Prevent asyncio's warning about an exception that was never retrieved."""
    if not task.cancelled():
        task.exception()
