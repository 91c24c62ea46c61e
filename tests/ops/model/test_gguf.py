"""Reading GGUF headers, including damaged ones."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.ops.model import ModelSetupError, gguf
from tests.support.files.gguf import ARRAY, HEAD, UINT32, build_gguf

NUMBERS, NESTED = struct.pack("<II", ARRAY, UINT32), struct.pack("<II", ARRAY, ARRAY)


def read(tmp_path: Path, content: bytes) -> gguf.Gguf:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return gguf.read(path)


def test_metadata_and_memory_estimate(tmp_path: Path) -> None:
    found = read(tmp_path, build_gguf(HEAD))
    assert (found.architecture, found.name, found.trained_context) == ("llama", "Small", 8192)
    assert found.cache_bytes_per_token == 30 * 3 * 64 * 2 * 2
    assert found.needed_bytes(1000) > found.needed_bytes(0) > found.size_bytes


def test_heads_per_layer_and_missing_metadata(tmp_path: Path) -> None:
    found = read(tmp_path, build_gguf({**HEAD, "llama.attention.head_count_kv": [1, 4, 2]}))
    assert found.cache_bytes_per_token == 30 * 4 * 64 * 2 * 2
    minimal = read(tmp_path, build_gguf({"general.architecture": "new"}))
    assert (minimal.trained_context, minimal.cache_bytes_per_token) == (0, 0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGUF",
        b"PK\3\4" + bytes(100),
        build_gguf(HEAD, version=99),
        build_gguf(HEAD)[:200],
        build_gguf(HEAD, data=10, offset=1000),
        build_gguf({"deep": [1]}).replace(NUMBERS, NESTED),
    ],
    ids=[
        *("empty", "magic only", "a zip", "a later version"),
        *("cut in the head", "cut in the data", "lists in lists"),
    ],
)
def test_incomplete_files_are_rejected(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ModelSetupError, match=r"model\.gguf"):
        read(tmp_path, content)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelSetupError, match="does not exist"):
        gguf.read(tmp_path / "none.gguf")
    with pytest.raises(ModelSetupError, match="cannot be read"):
        gguf.read(tmp_path)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_random_damage_raises_only_setup_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(build_gguf(HEAD))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(4, len(whole) - 4097))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ModelSetupError):
        read(tmp_path_factory.getbasetemp(), bytes(whole))
