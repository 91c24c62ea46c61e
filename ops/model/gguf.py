"""Reads the header of a GGUF file: validates it and estimates the memory it needs."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sluice.ops.model import ModelSetupError

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
#: struct codes of the scalar types, by type number.
_SCALARS: Final = {
    **dict(enumerate("BbHhIif?")),
    **dict(enumerate("Qqd", start=10)),
}
_STRING, _ARRAY = 8, 9
#: Maximum number of entries; a larger count means a damaged file.
_MAX_COUNT: Final = 1 << 24
#: Bytes per key or value in the KV cache.
_CACHE_ITEM_BYTES: Final = 2
#: Memory that llama.cpp needs in addition to weights and cache.
_OVERHEAD_BYTES: Final = 96 << 20


@dataclass(frozen=True)
class Gguf:
    """The metadata of a GGUF file."""

    path: Path
    size_bytes: int
    architecture: str
    name: str
    #: Context size of the training in tokens; 0 if unknown.
    trained_context: int
    #: Bytes per token in the KV cache; 0 if unknown.
    cache_bytes_per_token: int

    def needed_bytes(self, tokens: int) -> int:
        """Estimated memory for a total context of `tokens`."""
        return self.size_bytes + self.cache_bytes_per_token * tokens + _OVERHEAD_BYTES


def read(path: Path) -> Gguf:
    """Read the header of a file; raises ModelSetupError if it is not a complete GGUF file."""
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            header = _Header(raw)
            values = header.values
            header.require_complete(size_bytes)
    except FileNotFoundError:
        raise ModelSetupError(f"the file {path} does not exist; check --gguf") from None
    except OSError as error:
        raise ModelSetupError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, struct.error, IndexError, OverflowError) as error:
        raise ModelSetupError(
            f"{path} is not a complete GGUF file ({error}); download it again, or use another file "
            "with --gguf"
        ) from error
    kind = str(values.get("general.architecture", ""))
    return Gguf(
        path,
        size_bytes,
        kind,
        str(values.get("general.name", "")),
        _number(values.get(f"{kind}.context_length")),
        _cache_bytes_per_token(values, kind),
    )


def _cache_bytes_per_token(values: dict[str, Any], kind: str) -> int:
    layers = _number(values.get(f"{kind}.block_count"))
    heads = _number(values.get(f"{kind}.attention.head_count"))
    shared = _number(values.get(f"{kind}.attention.head_count_kv")) or heads
    width = _number(values.get(f"{kind}.embedding_length"))
    default = width // heads if heads else 0
    key = _number(values.get(f"{kind}.attention.key_length")) or default
    value = _number(values.get(f"{kind}.attention.value_length")) or default
    return layers * shared * (key + value) * _CACHE_ITEM_BYTES


def _number(value: Any) -> int:
    """An integer; for a list with one value per layer, the largest."""
    if isinstance(value, list):
        return max((_number(each) for each in value), default=0)
    return value if isinstance(value, int) else 0


class _Header:
    """Parses the header; raises ValueError, IndexError or struct.error if it is damaged."""

    def __init__(self, raw: mmap.mmap) -> None:
        self._raw = raw
        self._at = 4
        if raw[:4] != _MAGIC:
            raise ValueError("it does not start with GGUF")
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise ValueError(f"unknown version {version}")
        self._tensors = self._count()
        self.values = {self._string(): self._value(self._scalar("I")) for _ in range(self._count())}

    def require_complete(self, size_bytes: int) -> None:
        """Raise ValueError if a tensor starts after the end of the file."""
        furthest = 0
        for _ in range(self._tensors):
            self._string()
            dimensions = self._scalar("I")
            self._at += 8 * dimensions
            self._scalar("I")
            furthest = max(furthest, self._scalar("Q"))
        if self._at + furthest >= size_bytes:
            raise ValueError(f"it is truncated after {size_bytes / 1e6:.0f} MB")

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._raw, self._at)
        self._at += struct.calcsize(code)
        return value

    def _count(self) -> int:
        count = self._scalar("Q")
        if count > _MAX_COUNT:
            raise ValueError(f"invalid count {count}")
        return int(count)

    def _string(self) -> str:
        length = self._count()
        start, self._at = self._at, self._at + length
        if self._at > len(self._raw):
            raise ValueError("a string exceeds the end of the file")
        return self._raw[start : self._at].decode(errors="replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            inner, length = self._scalar("I"), self._count()
            return [self._value(inner) for _ in range(length)]
        if kind not in _SCALARS:
            raise ValueError(f"unknown value type {kind}")
        return self._scalar(_SCALARS[kind])
