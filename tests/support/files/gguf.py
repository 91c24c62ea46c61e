"""Builds small GGUF files with given metadata."""

from __future__ import annotations

import struct
from typing import Any

UINT32, STRING, ARRAY = 4, 8, 9
HEAD: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Small",
    "llama.block_count": 30,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.embedding_length": 576,
    "llama.context_length": 8192,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}


def build_gguf(head: dict[str, Any], data: int = 4096, version: int = 3, offset: int = 0) -> bytes:
    """A file with one tensor."""
    values = b"".join(_text(key) + _value(each) for key, each in head.items())
    tensor = _text("weights") + struct.pack("<IQQIQ", 2, 32, 32, 0, offset)
    start = b"GGUF" + struct.pack("<IQQ", version, 1, len(head))
    return start + values + tensor + bytes(data)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    if isinstance(value, list):
        inner = STRING if isinstance(value[0], str) else UINT32
        items = b"".join(
            _text(each) if inner == STRING else struct.pack("<I", each) for each in value
        )
        return struct.pack("<IIQ", ARRAY, inner, len(value)) + items
    return struct.pack("<II", UINT32, value)
