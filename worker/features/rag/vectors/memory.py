"""Vector index in the memory of one process: exact, by comparison with every vector.

Importing this module imports numpy; `new_memory_index` in `vectors/base.py` does so on demand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from sluice.worker.features.embedding.minilm import NDArray, np
from sluice.worker.features.rag.vectors.base import DimensionMismatch, PackedVectors, VectorMatch

#: Initial capacity in rows; it grows by half.
FIRST_ROWS: Final = 256
#: Removed rows are skipped, and compacted once they exceed one in COMPACT_AT.
COMPACT_AT: Final = 4
#: Searches over more numbers than this run in a thread.
THREAD_THRESHOLD: Final = 1_000_000
#: Marks the rows of a removed document.
_REMOVED: Final = -1


class NumpyVectorIndex:
    """Implements `VectorIndex`. A search sees the state of its start."""

    shared = False

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._rows: NDArray[np.float32] = np.empty((0, 0), np.float32)
        #: For each row: the number of its document, and its chunk.
        self._documents: NDArray[np.int64] = np.empty(0, np.int64)
        self._chunks: NDArray[np.int64] = np.empty(0, np.int64)
        self._used = 0
        self._gone = 0
        self._names: list[str] = []
        #: First row and number of rows of each document.
        self._row_ranges: dict[str, tuple[int, int]] = {}

    async def add(self, document_id: str, rows: PackedVectors) -> None:
        dimensions = rows.dimensions
        if rows.rows:
            self._check(dimensions)
        self._drop(document_id)
        if rows.rows:
            new = np.frombuffer(rows.data, "<f4").reshape(rows.rows, dimensions)
            self._append(document_id, new)
        self._compact()

    async def remove(self, document_id: str) -> None:
        self._drop(document_id)
        self._compact()

    async def existing(self, document_ids: Sequence[str]) -> set[str]:
        return {document_id for document_id in document_ids if document_id in self._row_ranges}

    async def search(self, vector: Sequence[float], k: int) -> list[VectorMatch]:
        query = np.asarray(vector, np.float32)
        self._check(len(query))
        if not self._row_ranges or k <= 0:
            return []
        used, names = self._used, self._names
        rows, documents, chunks = self._rows[:used], self._documents[:used], self._chunks[:used]
        if rows.size < THREAD_THRESHOLD:
            best, scores = _nearest(rows, documents, query, k)
        else:
            best, scores = await asyncio.to_thread(_nearest, rows, documents, query, k)
        return [
            VectorMatch(names[documents[at]], int(chunks[at]), float(score))
            for at, score in zip(best, scores)
        ]

    async def count(self) -> int:
        return self._used - self._gone

    async def clear(self) -> None:
        self._reset()

    def _check(self, dimensions: int) -> None:
        expected = self._rows.shape[1]
        if self._row_ranges and dimensions != expected:
            raise DimensionMismatch(
                f"a vector of {dimensions} dimensions among those of {expected}"
            )

    def _append(self, document_id: str, new: NDArray[np.float32]) -> None:
        first, self._used = self._used, self._used + len(new)
        if self._used > len(self._rows) or self._rows.shape[1] != new.shape[1]:
            self._grow(max(FIRST_ROWS, self._used, len(self._rows) * 3 // 2), new.shape[1])
        self._rows[first : self._used] = new
        self._documents[first : self._used] = len(self._names)
        self._chunks[first : self._used] = np.arange(len(new))
        self._names.append(document_id)
        self._row_ranges[document_id] = (first, len(new))

    def _drop(self, document_id: str) -> None:
        first, rows = self._row_ranges.pop(document_id, (0, 0))
        if not self._row_ranges:
            self._reset()
        elif rows:
            self._documents = self._documents.copy()  # a search may use the old array
            self._documents[first : first + rows] = _REMOVED
            self._gone += rows

    def _grow(self, size: int, dimensions: int) -> None:
        """Allocate new arrays; a search may use the old ones."""
        kept = len(self._documents)
        rows = np.empty((size, dimensions), np.float32)
        documents, chunks = np.empty(size, np.int64), np.empty(size, np.int64)
        if kept:
            rows[:kept], documents[:kept], chunks[:kept] = self._rows, self._documents, self._chunks
        self._rows, self._documents, self._chunks = rows, documents, chunks

    def _compact(self) -> None:
        """Copy the remaining rows to new arrays."""
        if self._gone <= max(FIRST_ROWS, self._used // COMPACT_AT):
            return
        left = list(self._row_ranges.items())
        rows = self._rows
        self._reset()
        self._grow(sum(size for _, (_, size) in left), rows.shape[1])
        for document_id, (first, size) in left:
            self._append(document_id, rows[first : first + size])


def _nearest(
    rows: NDArray[np.float32],
    documents: NDArray[np.int64],
    query: NDArray[np.float32],
    k: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows and scores, best first; equal scores in order of insertion."""
    scores = rows @ query
    scores[documents == _REMOVED] = -np.inf
    best = np.arange(len(scores))
    if k < len(scores):
        best = np.argpartition(scores, len(scores) - k)[len(scores) - k :]
    best = best[np.lexsort((best, -scores[best]))]
    best = best[documents[best] != _REMOVED]
    return best, scores[best]
