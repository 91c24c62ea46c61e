"""Reads float32 arrays out of a safetensors file, without trusting what it says of itself."""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from worker.features.embedding.types import DamagedModel

FLOAT32: Final = "F32"
_HEADER_LENGTH: Final = struct.Struct("<Q")
#: No model of ours comes near; the format's own limit is 100 MB.
MAX_HEADER_BYTES: Final = 1 << 20
_METADATA: Final = "__metadata__"


@dataclass(frozen=True)
class TensorInfo:
    """Where an array lies: its shape, and the place of its first byte in the file."""

    shape: tuple[int, ...]
    offset_bytes: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class TensorFile:
    """A mapped file: pages are read when they are used, and shared by all who map it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise DamagedModel(f"{path} cannot be read: {error}") from None
        try:
            self.tensors = self._read_header()
        except DamagedModel:
            self.data.close()
            raise

    def close(self) -> None:
        """Let go of the file; nobody may be using its pages."""
        self.data.close()

    def release_pages(self) -> None:
        """Give back the memory of all pages; those that are used again are read again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED)

    def find(self, name: str, *shape: int) -> TensorInfo:
        """The array of that name, which must have that shape."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise self._damaged(f"has no {name} of 32-bit floats")
        if tensor.shape != shape:
            raise self._damaged(f"has {name} of shape {list(tensor.shape)}, not {list(shape)}")
        return tensor

    def _read_header(self) -> dict[str, TensorInfo]:
        if len(self.data) < _HEADER_LENGTH.size:
            raise self._damaged("is too short")
        (length,) = _HEADER_LENGTH.unpack_from(self.data)
        start = _HEADER_LENGTH.size + length
        if not 2 <= length <= MAX_HEADER_BYTES or start > len(self.data):
            raise self._damaged(f"says that its header has {length} bytes")
        try:
            header = orjson.loads(self.data[_HEADER_LENGTH.size : start])
        except ValueError:
            raise self._damaged("has a header that is no JSON") from None
        if not isinstance(header, dict):
            raise self._damaged("has a header that is no object")
        header.pop(_METADATA, None)
        found = ((name, self._parse_entry(name, entry, start)) for name, entry in header.items())
        return {name: tensor for name, tensor in found if tensor is not None}

    def _parse_entry(self, name: str, entry: Any, start: int) -> TensorInfo | None:
        """None for other kinds of numbers."""
        try:
            kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            whole = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
        except (KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            raise self._damaged(f"describes {name} in no known way")
        if not begin <= end <= len(self.data) - start:
            raise self._damaged(f"has {name} beyond its end")
        if kind != FLOAT32:
            return None
        tensor = TensorInfo(tuple(shape), start + begin)
        if 4 * tensor.size != end - begin:
            raise self._damaged(f"has {end - begin} bytes for {name} of shape {shape}")
        return tensor

    def _damaged(self, what: str) -> DamagedModel:
        return DamagedModel(f"{self.path} {what}")
