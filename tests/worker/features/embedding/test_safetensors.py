"""Files of weights are validated before use."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker.features.embedding.safetensors import TensorFile
from worker.features.embedding.types import DamagedModel

NUMBERS = struct.pack("<6f", *range(6))
HEADER: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "F32", "shape": [2], "data_offsets": [16, 24]},
    "ids": {"dtype": "I64", "shape": [3], "data_offsets": [0, 24]},
}


def write(path: Path, header: object = HEADER, data: bytes = NUMBERS) -> Path:
    message = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(message)) + message + data)
    return path


def with_a(**changes: Any) -> dict[str, Any]:
    return {**HEADER, "a": {**HEADER["a"], **changes}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights"


def test_arrays_are_found_by_name_and_shape(path: Path) -> None:
    file = TensorFile(write(path))
    assert set(file.tensors) == {"a", "b"}
    first = file.find("b", 2).offset_bytes
    assert struct.unpack_from("<2f", file.data, first) == (4.0, 5.0)
    file.close()


def test_the_error_names_the_missing_tensor(path: Path) -> None:
    file = TensorFile(write(path))
    with pytest.raises(DamagedModel, match="has no c of 32-bit floats"):
        file.find("c", 2)
    with pytest.raises(DamagedModel, match="has no ids of 32-bit floats"):
        file.find("ids", 3)
    with pytest.raises(DamagedModel, match=r"has a of shape \[2, 2\], not \[4\]"):
        file.find("a", 4)
    file.close()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (with_a(data_offsets=[0, 32]), "has a beyond the end of the file"),
        (with_a(data_offsets=[16, 0]), "has a beyond the end of the file"),
        (with_a(data_offsets=[-16, 0]), "has an invalid entry for a"),
        (with_a(data_offsets=[0]), "has an invalid entry for a"),
        (with_a(data_offsets=[0, 12]), "has 12 bytes for a of shape"),
        (with_a(shape=[2, 3]), "has 16 bytes for a of shape"),
        (with_a(shape=[-2, -2]), "has an invalid entry for a"),
        (with_a(shape=[2.0, 2]), "has an invalid entry for a"),
        (with_a(shape=[True, 4]), "has an invalid entry for a"),
        (with_a(shape=4), "has an invalid entry for a"),
        ({"a": 3}, "has an invalid entry for a"),
        ({"a": {}}, "has an invalid entry for a"),
        ([], "has a header that is not an object"),
        (b"{", "declares a header of 1 bytes"),
        (b"{]", "has a header that is not valid JSON"),
    ],
)
def test_an_invalid_header_is_rejected(path: Path, header: object, message: str) -> None:
    with pytest.raises(DamagedModel, match=message) as caught:
        TensorFile(write(path, header))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"1234567", "is too short"),
        (struct.pack("<Q", 100) + b"{}", "declares a header of 100 bytes"),
        (struct.pack("<Q", 2**63) + b"{}", "declares a header of"),
        (b"version https://git-lfs.github.com/spec/v1\n", "declares a header of"),
    ],
)
def test_an_invalid_file_is_rejected(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(DamagedModel, match=message):
        TensorFile(path)


def test_no_file_at_all(path: Path) -> None:
    with pytest.raises(DamagedModel, match="cannot be read"):
        TensorFile(path)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=6,
)
ENTRY = st.fixed_dictionaries(
    {"dtype": st.just("F32") | JSON, "shape": JSON, "data_offsets": st.lists(st.integers()) | JSON}
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    header=st.dictionaries(st.text(max_size=4), ENTRY | JSON, max_size=3),
    data=st.binary(max_size=40),
)
def test_any_header_is_right_or_damaged(path: Path, header: dict[str, Any], data: bytes) -> None:
    try:
        file = TensorFile(write(path, header, data))
    except DamagedModel:
        return
    for tensor in file.tensors.values():
        assert tensor.offset_bytes + 4 * tensor.size <= len(file.data)
    file.close()
