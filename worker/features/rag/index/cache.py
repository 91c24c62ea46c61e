"""One namespace in memory, brought up to date by what has changed since the last look."""

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

from common.aio import cancel
from common.contracts.rag import RagKeys
from common.features.rag.documents import DocumentRecord
from worker.errors import TransientError
from worker.execution.concurrency import call_in_thread
from worker.features.rag.index.namespace import (
    ChunkIndex,
    IndexedDocument,
    ScoredChunk,
    prepare_document,
)
from worker.features.rag.index.ontology import Ontology, SynonymMatch
from worker.features.rag.store import RagStore, StoredText
from worker.features.rag.vectors.base import (
    DimensionMismatch,
    PackedVectors,
    VectorIndex,
    batch_by_size,
    have_numpy,
    new_memory_index,
)
from worker.features.rag.vectors.document_vectors import DocumentVectors, vector_name
from worker.features.rag.vectors.redis import RedisVectorIndex, has_vector_sets

#: Documents whose records are read together.
MOST_RECORDS: Final = 256
#: Bytes of a character, about.
_CHAR_BYTES: Final = 2


class NamespaceIndex:
    """An index and its vectors. One `refresh` at a time; searches may run beside it."""

    def __init__(self, store: RagStore, keys: RagKeys, nearness: DocumentVectors | None) -> None:
        self.keys = keys
        self.vectors = nearness
        #: The version that it is up to date with, at least, and whose vectors it looks for.
        self.version = 0
        self.embedder = ""
        #: Documents that have no vectors of that embedder.
        self.without_vectors: list[str] = []
        #: How many documents there are.
        self.total = 0
        #: The terms that it knows by several names.
        self.ontology = Ontology()
        self._store = store
        self._index = ChunkIndex()
        #: Threads take turns at the index.
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        vectors = self.vectors.size_bytes if self.vectors else 0
        return self._index.size_bytes + vectors + self.ontology.size_bytes

    @property
    def loaded(self) -> int:
        return len(self._index.documents)

    def get(self, document_id: str) -> IndexedDocument | None:
        return self._index.documents.get(document_id)

    async def synonyms(self, query: str) -> list[SynonymMatch]:
        """The parts of a query that have other names here."""
        if not self.ontology:
            return []
        found: list[SynonymMatch] = await call_in_thread(self._find, query)
        return found

    async def search(
        self, query: str, most: int, renamed: Sequence[SynonymMatch] = ()
    ) -> list[ScoredChunk]:
        """The best chunks by their words, or by other names of them."""
        found: list[ScoredChunk] = await call_in_thread(self._search, query, most, renamed)
        return found

    async def refresh(self, embedder: str) -> None:
        version = await self._store.version(self.keys)
        if version < self.version:  # emptied, and perhaps begun anew
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
        """Read the ontology, if it is another one by now. Its version is read first: what changes
        in between is read once more."""
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
        # All that are there have been taken. If there are more here, some were deleted.
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

#: Memory that all of them may take together; a larger one stays alone.
MOST_BYTES: Final = 256 * 1024 * 1024
#: How many there may be; asking for one that does not exist opens it, too.
MOST_CACHED: Final = 256
#: How often somebody who waits for a namespace to be read is told how far that is.
PROGRESS_EVERY_S: Final = 1.0

NO_VECTORS: Final = PackedVectors(b"", 0)

#: Told how many documents have been read, and of how many.
OnLoadProgress = Callable[[int, int], Awaitable[None]]


@dataclass
class _CacheEntry:
    index: NamespaceIndex
    refreshing: asyncio.Task[None] | None = None

    @property
    def is_refreshing(self) -> bool:
        return self.refreshing is not None and not self.refreshing.done()


class NamespaceCache:
    """Opens namespaces and keeps them up to date."""

    def __init__(self, redis: Redis, store: RagStore, most_bytes: int = MOST_BYTES) -> None:
        self._redis = redis
        self._store = store
        self._most_bytes = most_bytes
        self._open: OrderedDict[RagKeys, _CacheEntry] = OrderedDict()
        self._opening = asyncio.Lock()
        #: Whether Redis keeps vectors for us; unknown before the first look.
        self._has_sets: bool | None = None

    async def open(
        self, keys: RagKeys, embedder: str = "", watch: OnLoadProgress | None = None
    ) -> NamespaceIndex:
        """A namespace as it was when this was called, or newer."""
        version = await self._store.version(keys)
        opened = await self._get(keys)
        shelf = opened.index
        while _is_stale(shelf, version, embedder):
            await self._wait(opened, embedder, watch)
            if shelf.version > version:
                break
            # Its last document may have gone meanwhile, and its version with it.
            version = min(version, await self._store.version(keys))
        self._evict(keys)
        return shelf

    async def changed(
        self,
        keys: RagKeys,
        before: Sequence[DocumentRecord],
        record: DocumentRecord | None = None,
        rows: PackedVectors = NO_VECTORS,
    ) -> None:
        """A document was stored or deleted: tell those vectors that all workers see.

        What goes wrong here is put right by whoever opens the namespace next.
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
            log.warning("the vectors of namespace %s are behind: %s", keys.namespace, error)

    @property
    def opened(self) -> list[NamespaceIndex]:
        """Those in memory, the least used first."""
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
                nearness = None if vectors is None else DocumentVectors(self._store, keys, vectors)
                found = self._open[keys] = _CacheEntry(NamespaceIndex(self._store, keys, nearness))
        self._open.move_to_end(keys)
        return found

    async def _vectors(self, keys: RagKeys) -> VectorIndex | None:
        if self._has_sets is None:
            try:
                self._has_sets = await has_vector_sets(self._redis, keys.vector_set)
            except (RedisError, OSError) as error:
                raise TransientError(f"Redis is away: {error}") from error
        if self._has_sets:
            return RedisVectorIndex(self._redis, keys.vector_set)
        return new_memory_index() if have_numpy() else None

    async def _wait(self, opened: _CacheEntry, embedder: str, watch: OnLoadProgress | None) -> None:
        """Wait for the reading that is under way, or begin one. It outlives its callers."""
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


def _is_stale(shelf: NamespaceIndex, version: int, embedder: str) -> bool:
    return shelf.version != version or shelf.embedder != embedder


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Whoever waited may be gone; an error that nobody asks for would be complained about."""
    if not task.cancelled():
        task.exception()
