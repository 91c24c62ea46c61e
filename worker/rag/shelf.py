"""One namespace in memory, brought up to date by what has changed since the last look."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Final

from common.contracts.rag import RagKeys
from common.rag_store import DocumentRecord
from worker.rag.batches import batches
from worker.rag.index import Index, Indexed, Scored, prepare
from worker.rag.nearness import Nearness
from worker.rag.ontology import Ontology, Renamed
from worker.rag.store import RagStore, StoredText
from worker.threads import call_in_thread

#: Documents whose records are read together.
MOST_RECORDS: Final = 256
#: Bytes of a character, about.
_CHAR_BYTES: Final = 2


class Shelf:
    """An index and its vectors. One `refresh` at a time; searches may run beside it."""

    def __init__(self, store: RagStore, keys: RagKeys, nearness: Nearness | None) -> None:
        self.keys = keys
        self.nearness = nearness
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
        self._index = Index()
        #: Threads take turns at the index.
        self._turn = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        vectors = self.nearness.size_bytes if self.nearness else 0
        return self._index.size_bytes + vectors + self.ontology.size_bytes

    @property
    def loaded(self) -> int:
        """How many documents it knows."""
        return len(self._index.documents)

    def get(self, document_id: str) -> Indexed | None:
        """A document that it knows."""
        return self._index.documents.get(document_id)

    async def renamed(self, query: str) -> list[Renamed]:
        """The parts of a query that have other names here."""
        if not self.ontology:
            return []
        found: list[Renamed] = await call_in_thread(self._find, query)
        return found

    async def search(self, query: str, most: int, renamed: Sequence[Renamed] = ()) -> list[Scored]:
        """The best chunks by their words, or by other names of them."""
        found: list[Scored] = await call_in_thread(self._search, query, most, renamed)
        return found

    async def refresh(self, embedder: str) -> None:
        """Read what has changed."""
        version = await self._store.version(self.keys)
        if version < self.version:  # emptied, and perhaps begun anew
            await self._drop(list(self._index.documents))
            self.version = 0
        if embedder != self.embedder:
            self.embedder = embedder
            await self._learn([each.record for each in self._index.documents.values()])
        await self._learn_terms()
        first = not self.version
        if version != self.version:
            await self._catch_up()
        records = [each.record for each in self._index.documents.values()]
        embedded = [record for record in records if record.embedder == embedder]
        if first and self.nearness is not None:
            await self.nearness.tidy(sum(record.chunks for record in embedded))
        self.without_vectors = [record.id for record in records if record.embedder != embedder]
        self.version = version

    async def _learn_terms(self) -> None:
        """Read the ontology, if it is another one by now. Its version is read first: what changes
        in between is read once more."""
        version = await self._store.ontology_version(self.keys)
        if version != self.ontology.version:
            entries = await self._store.ontology(self.keys) if version else []
            self.ontology = Ontology(entries, version)

    async def _catch_up(self) -> None:
        since = self.version
        self.total = await self._store.count(self.keys)
        while batch := await self._store.changed(self.keys, since, MOST_RECORDS):
            await self._take([document_id for document_id, _ in batch])
            since = batch[-1][1]
        # All that are there have been taken. If there are more here, some were deleted.
        self.total = await self._store.count(self.keys)
        if self.loaded != self.total:
            await self._drop(self._index.documents.keys() - await self._store.ids(self.keys))

    async def _take(self, document_ids: Sequence[str]) -> None:
        records = await self._store.records(self.keys, document_ids)
        fresh = [record for record in records if not self._is_known(record)]
        for batch in batches(fresh, lambda record: record.chars * _CHAR_BYTES):
            names = [record.id for record in batch]
            await call_in_thread(self._put, await self._store.texts(self.keys, names))
        for record in records:
            indexed = self.get(record.id)
            if indexed is not None and indexed.record.revision == record.revision:
                indexed.record = record
        await self._learn(records)

    async def _learn(self, records: Sequence[DocumentRecord]) -> None:
        if self.nearness is not None:
            await self.nearness.learn(records, self.embedder)

    async def _drop(self, document_ids: Collection[str]) -> None:
        if document_ids:
            await call_in_thread(self._remove, document_ids)
        if self.nearness is not None:
            for document_id in document_ids:
                await self.nearness.forget(document_id)

    def _is_known(self, record: DocumentRecord) -> bool:
        indexed = self.get(record.id)
        return indexed is not None and indexed.record.revision == record.revision

    # -- in a thread -------------------------------------------------------------------------------

    def _search(self, query: str, most: int, renamed: Sequence[Renamed]) -> list[Scored]:
        with self._turn:
            return self._index.search(query, most, renamed)

    def _find(self, query: str) -> list[Renamed]:
        with self._turn:
            return self.ontology.find(query, self._index.languages)

    def _put(self, stored: Sequence[StoredText]) -> None:
        for document in stored:
            prepared = prepare(document)
            with self._turn:
                self._index.put(prepared)

    def _remove(self, document_ids: Collection[str]) -> None:
        with self._turn:
            self._index.drop(document_ids)
