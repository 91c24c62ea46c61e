"""Connects the documents of a namespace to its vector index."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from sluice.common.contracts.rag import RagKeys
from sluice.common.features.rag.documents import DocumentRecord
from sluice.worker.features.rag.index.namespace import ChunkRef, ScoredChunk
from sluice.worker.features.rag.store import RagStore
from sluice.worker.features.rag.vectors.base import (
    FLOAT_BYTES,
    DimensionMismatch,
    PackedVectors,
    VectorIndex,
    batch_by_size,
)

log = logging.getLogger(__name__)

#: Hexadecimal digits that identify a revision and its embedder.
_DIGITS: Final = 12
#: Estimated bytes of a chunk's vector.
_ROW_BYTES: Final = 1600
#: The shared index is rebuilt if its size exceeds this multiple of the chunks, plus this number.
_TOO_MANY_TIMES: Final = 2
_TOO_MANY: Final = 1000
#: Documents per batch whose vectors are read to be shared.
_SHARED_TOGETHER: Final = 8


def vector_name(record: DocumentRecord) -> str:
    """Name of a document's vectors; changes with its revision and its embedder."""
    state = f"{record.revision}\0{record.embedder}"
    return f"{record.id}@{hashlib.sha256(state.encode()).hexdigest()[:_DIGITS]}"


class DocumentVectors:
    """The vectors of the documents of a namespace, as this worker knows them."""

    def __init__(self, store: RagStore, keys: RagKeys, vectors: VectorIndex) -> None:
        self._store = store
        self._keys = keys
        self._vectors = vectors
        #: Names by document, documents by name, and bytes by document.
        self._names: dict[str, str] = {}
        self._documents: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        #: Documents whose vectors are missing in the shared index.
        self.missing: set[str] = set()

    @property
    def shared(self) -> bool:
        """True if all workers use the same vector index."""
        return self._vectors.shared

    @property
    def size_bytes(self) -> int:
        """Estimated memory in this process."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._names)

    async def update(self, records: Iterable[DocumentRecord], embedder: str) -> None:
        """Add or update the vectors of these documents; vectors of other models are ignored."""
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
        """Copy the vectors of documents to the shared index."""
        for at in range(0, len(document_ids) if self.shared else 0, _SHARED_TOGETHER):
            await self._load(document_ids[at : at + _SHARED_TOGETHER], embedder)

    async def repair_shared(self, chunks: int) -> None:
        """Rebuild the shared index if it has far too many or too few vectors.

        A worker may have crashed while it added or removed a document.
        """
        if not self.shared or not self._names:
            return
        stored = await self._vectors.count()
        if stored > _TOO_MANY_TIMES * chunks + _TOO_MANY:
            await self._vectors.clear()
        elif stored >= chunks or self.missing:
            return
        self.missing.update(self._names)

    async def remove_document(self, document_id: str) -> None:
        """Forget a document that was deleted or replaced."""
        name = self._drop(document_id)
        if name is not None:
            await self._vectors.remove(name)

    async def search(self, vector: Sequence[float], most: int) -> list[ScoredChunk]:
        # The shared index may contain vectors of documents that are being added or removed.
        count = 2 * most if self.shared else most
        try:
            found = await self._vectors.search(vector, count)
        except DimensionMismatch as error:
            log.warning("the namespace has vectors of another model: %s", error)
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
        """Add the vectors of a document; returns False if they do not fit."""
        name, others = vector_name(record), self._names.keys() - {record.id}
        for last in (False, True):
            try:
                await self._vectors.add(name, packed)
                return True
            except DimensionMismatch as error:
                # If no known document is in the shared index, its vectors are of an earlier
                # embedder.
                if last or not self.shared or others - self.missing:
                    log.warning("document %s: unusable vectors: %s", record.id, error)
                    return False
                await self._vectors.clear()
        return False

    async def _ignore(self, document_id: str) -> None:
        """Ignore the vectors of a document here; other workers may still use them."""
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
