"""Reads float32 tensors from a safetensors file and validates its header."""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from sluice.worker.features.embedding.types import DamagedModel

FLOAT32: Final = "F32"
_HEADER_LENGTH: Final = struct.Struct("<Q")
#: The format itself allows 100 MB; the supported models need far less.
MAX_HEADER_BYTES: Final = 1 << 20
_METADATA: Final = "__metadata__"


@dataclass(frozen=True)
class TensorInfo:
    """Shape of a tensor and the offset of its first byte in the file."""

    shape: tuple[int, ...]
    offset_bytes: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class TensorFile:
    """Memory-mapped file: pages are read on demand and shared between processes."""

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
        """Unmap the file; no tensor may be in use."""
        self.data.close()

    def release_pages(self) -> None:
        """Release the memory of all pages; they are read again on demand."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED)

    def find(self, name: str, *shape: int) -> TensorInfo:
        """The tensor with this name; raises DamagedModel if it is missing or has another shape."""
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
            raise self._damaged(f"declares a header of {length} bytes")
        try:
            header = orjson.loads(self.data[_HEADER_LENGTH.size : start])
        except ValueError:
            raise self._damaged("has a header that is not valid JSON") from None
        if not isinstance(header, dict):
            raise self._damaged("has a header that is not an object")
        header.pop(_METADATA, None)
        found = ((name, self._parse_entry(name, entry, start)) for name, entry in header.items())
        return {name: tensor for name, tensor in found if tensor is not None}

    def _parse_entry(self, name: str, entry: Any, start: int) -> TensorInfo | None:
        """None for types other than float32."""
        try:
            kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            whole = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
        except (KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            raise self._damaged(f"has an invalid entry for {name}")
        if not begin <= end <= len(self.data) - start:
            raise self._damaged(f"has {name} beyond the end of the file")
        if kind != FLOAT32:
            return None
        tensor = TensorInfo(tuple(shape), start + begin)
        if 4 * tensor.size != end - begin:
            raise self._damaged(f"has {end - begin} bytes for {name} of shape {shape}")
        return tensor

    def _damaged(self, what: str) -> DamagedModel:
        return DamagedModel(f"{self.path} {what}")
