"""The vectors of a namespace's chunks, and the nearest of them to another one.

A document goes by any name. Who replaces documents while others search does well to put a
revision into the name: add the new one, switch, remove the old one.
"""

from __future__ import annotations

import importlib.util
import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from worker.rag.numpy_vectors import NumpyVectors

FLOAT_BYTES: Final = 4


class OtherDimensions(Exception):
    """A vector has another length than those that are there: another model made it."""


class Near(NamedTuple):
    """A chunk near to what was looked for; the score is the cosine."""

    document_id: str
    chunk: int
    score: float


class Packed(NamedTuple):
    """So many vectors one after the other, as little-endian float32."""

    data: bytes
    rows: int

    @property
    def dimensions(self) -> int:
        """How long each of them is."""
        dimensions, rest = divmod(len(self.data), FLOAT_BYTES * self.rows or 1)
        if rest or (self.rows and not dimensions):
            raise OtherDimensions(f"{len(self.data)} bytes are not {self.rows} vectors")
        return dimensions


class Vectors(Protocol):
    """Vectors of length one, some for each document."""

    @property
    def shared(self) -> bool:
        """Whether all workers see the same ones, so that only who changes a document tells."""

    async def add(self, document_id: str, rows: Packed) -> None:
        """One vector a chunk, in order; they replace the document's earlier ones.

        Raises OtherDimensions.
        """

    async def remove(self, document_id: str) -> None:
        """Forget a document; it may be unknown."""

    async def held(self, document_ids: Sequence[str]) -> set[str]:
        """Those of the documents that are there, and whole."""

    async def search(self, vector: Sequence[float], k: int) -> list[Near]:
        """The `k` nearest, best first. Raises OtherDimensions."""

    async def count(self) -> int:
        """How many chunks there are."""

    async def clear(self) -> None:
        """Forget everything, the length of the vectors too."""


def pack(rows: Sequence[Sequence[float]]) -> Packed:
    """Vectors as they are stored, without need of numpy."""
    numbers = array("f")
    for row in rows:
        if len(row) != len(rows[0]):
            raise OtherDimensions(f"vectors of {len(rows[0])} and of {len(row)} dimensions")
        numbers.extend(row)
    if sys.byteorder == "big":
        numbers.byteswap()
    return Packed(numbers.tobytes(), len(rows))


def have_numpy() -> bool:
    """Whether vectors can be kept in memory."""
    return importlib.util.find_spec("numpy") is not None


def in_memory() -> NumpyVectors:
    """Vectors of this process alone. Needs numpy, and takes its time to import it."""
    from worker.rag.numpy_vectors import NumpyVectors

    return NumpyVectors()
