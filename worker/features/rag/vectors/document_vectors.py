"""Which chunks of a namespace are near to a vector: ties its documents to their vectors."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from common.contracts.rag import RagKeys
from common.features.rag.documents import DocumentRecord
from worker.features.rag.index.namespace import ChunkRef, ScoredChunk
from worker.features.rag.store import RagStore
from worker.features.rag.vectors.base import (
    FLOAT_BYTES,
    DimensionMismatch,
    PackedVectors,
    VectorIndex,
    batch_by_size,
)

log = logging.getLogger(__name__)

#: Digits that tell the vectors of a document's revision, by one embedder, from all others.
_DIGITS: Final = 12
#: Bytes of a chunk's vector, about.
_ROW_BYTES: Final = 1600
#: Left-over vectors of documents that are gone: from so many times the others on, and so many more.
_TOO_MANY_TIMES: Final = 2
_TOO_MANY: Final = 1000
#: Documents whose vectors are read together to be shared.
_SHARED_TOGETHER: Final = 8


def vector_name(record: DocumentRecord) -> str:
    """Under what name a document's vectors go: another one after each change of either."""
    state = f"{record.revision}\0{record.embedder}"
    return f"{record.id}@{hashlib.sha256(state.encode()).hexdigest()[:_DIGITS]}"


class DocumentVectors:
    """The vectors of the documents that a worker knows of a namespace."""

    def __init__(self, store: RagStore, keys: RagKeys, vectors: VectorIndex) -> None:
        self._store = store
        self._keys = keys
        self._vectors = vectors
        #: Names by document, documents by name, and bytes by document.
        self._names: dict[str, str] = {}
        self._documents: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        #: Documents whose vectors are not where all workers should see them.
        self.missing: set[str] = set()

    @property
    def shared(self) -> bool:
        """Whether all workers see the same vectors."""
        return self._vectors.shared

    @property
    def size_bytes(self) -> int:
        """About how much memory of this process they take."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._names)

    async def update(self, records: Iterable[DocumentRecord], embedder: str) -> None:
        """Know the vectors that these documents have by now; those of other models do not count."""
        new: list[DocumentRecord] = []
        for record in records:
            if not embedder or record.embedder != embedder:
                await self._ignore(record.id)
            elif self._names.get(record.id) != vector_name(record):
                await self.remove_document(record.id)
                new.append(record)
        for batch in batch_by_size(new, lambda record: record.chunks * _ROW_BYTES):
            if self.shared:
                await self._find_shared(batch)
            else:
                await self._load([record.id for record in batch], embedder)

    async def share(self, document_ids: Sequence[str], embedder: str) -> None:
        """Put documents' vectors where all workers see them."""
        for at in range(0, len(document_ids) if self.shared else 0, _SHARED_TOGETHER):
            await self._load(document_ids[at : at + _SHARED_TOGETHER], embedder)

    async def repair_shared(self, chunks: int) -> None:
        """Where all workers' vectors are not about as many as they should be, put them in anew.

        Whoever adds or removes a document may have died over it.
        """
        if not self.shared or not self._names:
            return
        there = await self._vectors.count()
        if there > _TOO_MANY_TIMES * chunks + _TOO_MANY:
            await self._vectors.clear()
        elif there >= chunks or self.missing:
            return
        self.missing.update(self._names)

    async def remove_document(self, document_id: str) -> None:
        """A document is gone, or another by now."""
        name = self._drop(document_id)
        if name is not None:
            await self._vectors.remove(name)

    async def search(self, vector: Sequence[float], most: int) -> list[ScoredChunk]:
        # Among those of all workers there may be some of documents that are just coming or going.
        asked = 2 * most if self.shared else most
        try:
            found = await self._vectors.search(vector, asked)
        except DimensionMismatch as error:
            log.warning("the vectors of the namespace are another model's: %s", error)
            return []
        return [
            ScoredChunk(ChunkRef(self._documents[near.document_id], near.chunk), near.score)
            for near in found
            if near.document_id in self._documents
        ][:most]

    async def _find_shared(self, records: Sequence[DocumentRecord]) -> None:
        names = {vector_name(record): record.id for record in records}
        held = await self._vectors.existing(list(names))
        for name, document_id in names.items():
            self._register(document_id, name)
            if name not in held:
                self.missing.add(document_id)

    async def _load(self, document_ids: Sequence[str], embedder: str) -> None:
        for stored in await self._store.vectors(self._keys, document_ids):
            record = stored.record
            self.missing.discard(record.id)
            if record.embedder != embedder or not stored.rows:
                continue
            packed = PackedVectors(stored.rows, record.chunks)
            if not await self._add(record, packed):
                self._drop(record.id)
                continue
            self._register(record.id, vector_name(record))
            if not self.shared:
                self._sizes[record.id] = FLOAT_BYTES * packed.rows * packed.dimensions
                self._bytes += self._sizes[record.id]

    async def _add(self, record: DocumentRecord, packed: PackedVectors) -> bool:
        """Add a document's vectors; whether they could be."""
        name, others = vector_name(record), self._names.keys() - {record.id}
        for last in (False, True):
            try:
                await self._vectors.add(name, packed)
                return True
            except DimensionMismatch as error:
                # Where none of ours is among those of all workers, they are an earlier embedder's.
                if last or not self.shared or others - self.missing:
                    log.warning("the vectors of document %s are of no use: %s", record.id, error)
                    return False
                await self._vectors.clear()
        return False

    async def _ignore(self, document_id: str) -> None:
        """A document's vectors do not count here; another worker may see that otherwise."""
        name = self._drop(document_id)
        if name is not None and not self.shared:
            await self._vectors.remove(name)

    def _drop(self, document_id: str) -> str | None:
        name = self._names.pop(document_id, None)
        self._bytes -= self._sizes.pop(document_id, 0)
        self.missing.discard(document_id)
        if name is not None:
            self._documents.pop(name, None)
        return name

    def _register(self, document_id: str, name: str) -> None:
        self._names[document_id] = name
        self._documents[name] = document_id
