"""Vector index of a namespace's chunks.

Documents have arbitrary names. To replace a document during searches, put a revision into the name:
add the new one, switch, remove the old one.
"""

from __future__ import annotations

import importlib.util
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from sluice.worker.features.rag.vectors.memory import NumpyVectorIndex

T = TypeVar("T")

MOST_ITEMS: Final = 64
MOST_BYTES: Final = 2_000_000


def batch_by_size(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Split into batches of at most MOST_ITEMS items and MOST_BYTES, in order."""
    batch: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and (len(batch) == MOST_ITEMS or total + size > MOST_BYTES):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch


FLOAT_BYTES: Final = 4


class DimensionMismatch(Exception):
    """A vector has another length than the indexed ones: it is of another model."""


class VectorMatch(NamedTuple):
    """A chunk near the query; the score is the cosine."""

    document_id: str
    chunk: int
    score: float


class PackedVectors(NamedTuple):
    """Vectors as consecutive little-endian float32."""

    data: bytes
    rows: int

    @property
    def dimensions(self) -> int:
        """Length of each vector."""
        dimensions, rest = divmod(len(self.data), FLOAT_BYTES * self.rows or 1)
        if rest or (self.rows and not dimensions):
            raise DimensionMismatch(f"{len(self.data)} bytes are not {self.rows} vectors")
        return dimensions


class VectorIndex(Protocol):
    """Vectors of length one, several per document."""

    @property
    def shared(self) -> bool:
        """True if all workers use the same index, so that only the worker that changes a document
        updates it.
        """

    async def add(self, document_id: str, rows: PackedVectors) -> None:
        """Store one vector per chunk, in order, replacing the document's earlier ones.

        Raises DimensionMismatch.
        """

    async def remove(self, document_id: str) -> None:
        """Remove a document, if it is there."""

    async def existing(self, document_ids: Sequence[str]) -> set[str]:
        """Those of the documents that are completely indexed."""

    async def search(self, vector: Sequence[float], k: int) -> list[VectorMatch]:
        """The `k` nearest, best first. Raises DimensionMismatch."""

    async def count(self) -> int:
        """Number of chunks."""

    async def clear(self) -> None:
        """Remove everything, including the length of the vectors."""


def pack_vectors(rows: Sequence[Sequence[float]]) -> PackedVectors:
    """Pack vectors for storage; does not need numpy."""
    numbers = array("f")
    for row in rows:
        if len(row) != len(rows[0]):
            raise DimensionMismatch(f"vectors of {len(rows[0])} and of {len(row)} dimensions")
        numbers.extend(row)
    if sys.byteorder == "big":
        numbers.byteswap()
    return PackedVectors(numbers.tobytes(), len(rows))


def have_numpy() -> bool:
    """True if vectors can be kept in memory."""
    return importlib.util.find_spec("numpy") is not None


def new_memory_index() -> NumpyVectorIndex:
    """Vector index in this process. Imports numpy, which is slow."""
    from sluice.worker.features.rag.vectors.memory import NumpyVectorIndex

    return NumpyVectorIndex()
