"""The local embedder with its real weights, and the validation of files of weights."""

from __future__ import annotations

import asyncio
import json
import math
import os
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.common.errors import SettingsError
from sluice.common.settings.models_dir import MODELS_DIR_VARIABLE, models_dir
from sluice.worker.features.embedding.factory import DIMENSIONS, MODEL_NAME, find_model_problem
from sluice.worker.features.embedding.local import LocalEmbedder
from sluice.worker.features.embedding.minilm import Array, MiniLM, Workspace, gelu
from sluice.worker.features.embedding.safetensors import TensorFile
from sluice.worker.features.embedding.types import DamagedModel, NoEmbedder, WrongDimensions
from tests.support.worker.embedding import weights
from tests.support.worker.model import fake_services

ROOT = Path(__file__).parents[4]
#: Far more than a short query takes, for a busy machine.
AMPLE_S = 5.0
with_model = pytest.mark.slow("loads the installed model")


@pytest.fixture(scope="module")
def loaded() -> Any:
    """The model, in memory only once."""
    return LocalEmbedder(weights())._load()


@pytest.fixture
async def embedder(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalEmbedder]:
    monkeypatch.setattr(LocalEmbedder, "_load", lambda self: loaded)
    embedder = LocalEmbedder(weights())
    yield embedder
    await embedder.close()


Read = Callable[..., Array]


@pytest.fixture(scope="module")
def read(loaded: Any) -> Read:
    """Vectors of texts, in full precision."""
    return lambda *texts: loaded._model.embed([loaded.encode(text).ids for text in texts])


@with_model
async def test_vectors_of_many_texts(embedder: LocalEmbedder) -> None:
    texts = ["cat", "kitten", "x " * 1000, "steam engine", "short"]
    made = await embedder.embed_all(texts, DIMENSIONS)
    assert [len(vector) for vector in made.vectors] == [DIMENSIONS] * 5
    assert made.truncated == 1
    assert made.tokens == 3 + 3 + 256 + 4 + 3
    cat, kitten, _, engine, _ = made.vectors
    assert dot(cat, kitten) > dot(cat, engine) + 0.2
    assert dot(cat, cat) == pytest.approx(1, abs=1e-5)
    # No more digits than float32 needs.
    assert all(len(repr(abs(number))) <= 10 or abs(number) < 1e-4 for number in cat)
    with pytest.raises(WrongDimensions, match="produces 384 dimensions, not 256"):
        await embedder.embed_all(["a"], 256)


@with_model
@pytest.mark.slow("embeds about a hundred texts with the real model")
async def test_a_query_is_quick_and_does_not_block_the_loop(embedder: LocalEmbedder) -> None:
    query = "how do I cancel a running job and free the model?"
    await embedder.embed([query])  # loads the model
    longest, last = 0.0, time.monotonic()
    working = asyncio.ensure_future(embedder.embed([query] * 20))
    while not working.done():
        await asyncio.sleep(0.001)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    took = []
    for _ in range(10):
        started = time.monotonic()
        await embedder.embed([query])
        took.append(time.monotonic() - started)
    assert min(took) < AMPLE_S
    assert longest < AMPLE_S


@with_model
async def test_the_model_is_loaded_when_it_is_needed(embedder: LocalEmbedder) -> None:
    eager = LocalEmbedder(weights(), eager=True)
    for each in (embedder, eager):
        services = fake_services()
        await each.start(services)
        assert services.heartbeat_fields["embedder"]() == MODEL_NAME
    assert embedder._thread._model is None
    assert eager._thread._model is not None
    await eager.close()


async def test_a_damaged_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"half a file")
    embedder = LocalEmbedder(tmp_path)
    await embedder.start(fake_services())
    with pytest.raises(NoEmbedder, match="run `sluice model install` again"):
        await embedder.embed(["a"])
    await embedder.close()
    eager = LocalEmbedder(tmp_path, eager=True)
    with pytest.raises(SettingsError, match=r"EMBEDDER=minilm: .*`sluice model install` again"):
        await eager.start(fake_services())
    await eager.close()


@with_model
def test_problems_that_make_it_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "run `sluice model install`" in find_model_problem(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "cannot be read" in find_model_problem(tmp_path)
    assert find_model_problem(weights()) == ""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "numpy is not installed" in find_model_problem(weights())


@with_model
def test_numpy_is_imported_on_demand() -> None:
    """A worker without embeddings does not import numpy; others use one BLAS thread."""
    code = f"""
import asyncio, os, sys
from pathlib import Path
from sluice.worker.features.embedding.local import LocalEmbedder
from sluice.worker.features.rag.vectors.base import new_memory_index
assert "numpy" not in sys.modules
async def main():
    embedder = LocalEmbedder(Path({str(weights())!r}))
    before = dict(os.environ)
    await embedder.embed(["x"])
    assert dict(os.environ) == before
    await embedder.close()
asyncio.run(main())
assert "numpy" in sys.modules
print(len(os.listdir("/proc/self/task")))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={MODELS_DIR_VARIABLE: str(models_dir()), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 3  # the main thread, and the pool of asyncio.to_thread


def dot(left: list[float], right: list[float]) -> float:
    return sum(one * other for one, other in zip(left, right))


#: Of sentence-transformers 6.2 on torch 2.13: the sum and every 48th of 384 numbers.
GOLDEN = {
    "A job is taken by one worker at a time.": (-0.23262,
        [-0.098691, 0.017512, 0.010043, 0.035873, 0.037461, 0.067813, 0.007767, 0.014936]),
    "How do I stop a running job?": (0.16692,
        [-0.019018, 0.02962, -0.01341, 0.009362, -0.02519, 0.061597, 0.106923, 0.069955]),
    "": (0.62907,
        [-0.118838, 0.063324, 0.029042, 0.007964, -0.086478, 0.069688, -0.022747, -0.104721]),
    "Ünïcödé, naïve café — 東京は日本の首都です。": (-0.07922,
        [0.076897, -0.020655, -0.005747, 0.053988, -0.066813, 0.096264, -0.03255, -0.036592]),
    "🙂 emoji [SEP] and [MASK]": (0.0016,
        [-0.115744, -0.059836, 0.027896, 0.001137, 0.028696, 0.105218, -0.040465, 0.008098]),
    # Longer than the model's limit.
    "The quick brown fox jumps over the lazy dog. " * 60: (-0.47718,
        [0.062278, -0.063252, 0.057741, 0.025365, 0.120579, 0.087119, -0.047842, -0.031233]),
    "def main() -> int:\n    return 0\n": (-0.08058,
        [0.060335, 0.073327, 0.00619, 0.105833, -0.135458, -0.057948, -0.102196, 0.079159]),
    "١٢٣ عربى हिन्दी ไทย": (-0.36266,
        [0.001614, 0.077337, 0.002706, 0.02164, -0.051287, 0.052277, -0.0536, 0.025258]),
}  # fmt: skip


@with_model
def test_vectors_are_those_of_the_reference(read: Read) -> None:
    for text, (total, numbers) in GOLDEN.items():
        [vector] = read(text)
        assert vector[::48] == pytest.approx(numbers, abs=2e-6), text
        assert vector.sum() == pytest.approx(total, abs=2e-5), text
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


@with_model
@pytest.mark.slow("embeds each text alone and with others")
def test_other_texts_in_a_batch_make_no_difference(read: Read) -> None:
    texts = sorted(GOLDEN, key=len)[:-1]
    together = read(*texts)
    for text, vector in zip(texts, together):
        assert vector == pytest.approx(read(text)[0], abs=1e-6)
    assert read(*reversed(texts))[::-1] == pytest.approx(together, abs=1e-6)


def test_gelu_is_accurate_to_the_last_digit() -> None:
    x = np.linspace(-12, 12, 12_000, dtype=np.float32).reshape(-1, 30)
    wanted = [value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in x.ravel().tolist()]
    assert gelu(x.copy(), Workspace()).ravel() == pytest.approx(wanted, abs=1e-6)


@with_model
def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    installed, copy = weights() / "model.safetensors", tmp_path / "model.safetensors"
    size_bytes = installed.stat().st_size
    with installed.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = file.read(length)
    other = header.replace(b'"shape":[30522,384]', b'"shape":[15261,768]')
    assert other != header
    for written, kept_bytes, message in (
        (other, size_bytes, r"shape \[15261, 768\], not \[30522, 384\]"),
        (header, size_bytes // 2, "beyond the end"),
    ):
        copy.write_bytes(file_of(written, b""))
        os.truncate(copy, kept_bytes)  # a sparse file
        with pytest.raises(DamagedModel, match=message):
            MiniLM(tmp_path)


NUMBERS = struct.pack("<6f", *range(6))
HEADER: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "F32", "shape": [2], "data_offsets": [16, 24]},
    "ids": {"dtype": "I64", "shape": [3], "data_offsets": [0, 24]},
}


def file_of(header: object = HEADER, data: bytes = NUMBERS) -> bytes:
    message = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(message)) + message + data


def with_a(**changes: Any) -> dict[str, Any]:
    return {**HEADER, "a": {**HEADER["a"], **changes}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights"


def test_arrays_are_found_by_name_and_shape(path: Path) -> None:
    path.write_bytes(file_of())
    file = TensorFile(path)
    assert set(file.tensors) == {"a", "b"}
    first = file.find("b", 2).offset_bytes
    assert struct.unpack_from("<2f", file.data, first) == (4.0, 5.0)
    for name, shape, message in (
        ("c", 2, "has no c of 32-bit floats"),
        ("ids", 3, "has no ids of 32-bit floats"),
        ("a", 4, r"has a of shape \[2, 2\], not \[4\]"),
    ):
        with pytest.raises(DamagedModel, match=message):
            file.find(name, shape)
    file.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (file_of(with_a(data_offsets=[0, 32])), "has a beyond the end of the file"),
        (file_of(with_a(data_offsets=[16, 0])), "has a beyond the end of the file"),
        (file_of(with_a(data_offsets=[-16, 0])), "has an invalid entry for a"),
        (file_of(with_a(data_offsets=[0])), "has an invalid entry for a"),
        (file_of(with_a(data_offsets=[0, 12])), "has 12 bytes for a of shape"),
        (file_of(with_a(shape=[2, 3])), "has 16 bytes for a of shape"),
        *((file_of(with_a(shape=shape)), "has an invalid entry for a")
          for shape in ([-2, -2], [2.0, 2], [True, 4], 4)),
        *((file_of({"a": entry}), "has an invalid entry for a") for entry in (3, {})),
        (file_of([]), "has a header that is not an object"),
        (file_of(b"{"), "declares a header of 1 bytes"),
        (file_of(b"{]"), "has a header that is not valid JSON"),
        (None, "cannot be read"),
        (b"", "cannot be read"),
        (b"1234567", "is too short"),
        (struct.pack("<Q", 100) + b"{}", "declares a header of 100 bytes"),
        (struct.pack("<Q", 2**63) + b"{}", "declares a header of"),
        (b"version https://git-lfs.github.com/spec/v1\n", "declares a header of"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_rejected(path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DamagedModel, match=message) as caught:
        TensorFile(path)
    assert str(path) in str(caught.value)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
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
    path.write_bytes(file_of(header, data))
    try:
        file = TensorFile(path)
    except DamagedModel:
        return
    for tensor in file.tensors.values():
        assert tensor.offset_bytes + 4 * tensor.size <= len(file.data)
    file.close()
