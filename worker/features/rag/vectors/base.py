"""The vectors of a namespace's chunks, and the nearest of them to another one.

A document goes by any name. Who replaces documents while others search does well to put a
revision into the name: add the new one, switch, remove the old one.
"""

from __future__ import annotations

import importlib.util
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from worker.features.rag.vectors.memory import NumpyVectorIndex

T = TypeVar("T")

MOST_ITEMS: Final = 64
MOST_BYTES: Final = 2_000_000


def batch_by_size(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """The items in order, so many together that they take no more than some megabytes."""
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
    """A vector has another length than those that are there: another model made it."""


class VectorMatch(NamedTuple):
    """A chunk near to what was looked for; the score is the cosine."""

    document_id: str
    chunk: int
    score: float


class PackedVectors(NamedTuple):
    """So many vectors one after the other, as little-endian float32."""

    data: bytes
    rows: int

    @property
    def dimensions(self) -> int:
        """How long each of them is."""
        dimensions, rest = divmod(len(self.data), FLOAT_BYTES * self.rows or 1)
        if rest or (self.rows and not dimensions):
            raise DimensionMismatch(f"{len(self.data)} bytes are not {self.rows} vectors")
        return dimensions


class VectorIndex(Protocol):
    """Vectors of length one, some for each document."""

    @property
    def shared(self) -> bool:
        """Whether all workers see the same ones, so that only who changes a document tells."""

    async def add(self, document_id: str, rows: PackedVectors) -> None:
        """One vector a chunk, in order; they replace the document's earlier ones.

        Raises OtherDimensions.
        """

    async def remove(self, document_id: str) -> None:
        """Forget a document; it may be unknown."""

    async def existing(self, document_ids: Sequence[str]) -> set[str]:
        """Those of the documents that are there, and whole."""

    async def search(self, vector: Sequence[float], k: int) -> list[VectorMatch]:
        """The `k` nearest, best first. Raises OtherDimensions."""

    async def count(self) -> int:
        """How many chunks there are."""

    async def clear(self) -> None:
        """Forget everything, the length of the vectors too."""


def pack_vectors(rows: Sequence[Sequence[float]]) -> PackedVectors:
    """Vectors as they are stored, without need of numpy."""
    numbers = array("f")
    for row in rows:
        if len(row) != len(rows[0]):
            raise DimensionMismatch(f"vectors of {len(rows[0])} and of {len(row)} dimensions")
        numbers.extend(row)
    if sys.byteorder == "big":
        numbers.byteswap()
    return PackedVectors(numbers.tobytes(), len(rows))


def have_numpy() -> bool:
    """Whether vectors can be kept in memory."""
    return importlib.util.find_spec("numpy") is not None


def new_memory_index() -> NumpyVectorIndex:
    """Vectors of this process alone. Needs numpy, and takes its time to import it."""
    from worker.features.rag.vectors.memory import NumpyVectorIndex

    return NumpyVectorIndex()
