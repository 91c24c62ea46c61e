"""The local embedder with its real weights."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import SettingsError
from common.settings.models_dir import MODELS_DIR_VARIABLE, models_dir
from tests.worker.features.embedding.kit import weights
from worker.features.embedding.factory import DIMENSIONS, MODEL_NAME, find_model_problem
from worker.features.embedding.local import LocalEmbedder
from worker.features.embedding.types import NoEmbedder, WrongDimensions

ROOT = Path(__file__).parents[4]
#: Far more than a short query takes, for a busy machine.
AMPLE_S = 5.0


@pytest.fixture
async def embedder() -> AsyncIterator[LocalEmbedder]:
    embedder = LocalEmbedder(weights())
    yield embedder
    await embedder.close()


def services() -> Any:
    return SimpleNamespace(heartbeat_fields={})


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


async def test_other_lengths_are_refused(embedder: LocalEmbedder) -> None:
    with pytest.raises(WrongDimensions, match="produces 384 dimensions, not 256"):
        await embedder.embed_all(["a"], 256)


async def test_the_model_is_loaded_when_it_is_needed() -> None:
    folder = weights()
    lazy, eager = LocalEmbedder(folder), LocalEmbedder(folder, eager=True)
    for embedder in (lazy, eager):
        rooms = services()
        await embedder.start(rooms)
        assert rooms.heartbeat_fields["embedder"]() == MODEL_NAME
    assert lazy._thread._model is None
    assert eager._thread._model is not None
    await lazy.close()
    await eager.close()


async def test_a_damaged_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"half a file")
    embedder = LocalEmbedder(tmp_path)
    await embedder.start(services())
    with pytest.raises(NoEmbedder, match="run `sluice model install` again"):
        await embedder.embed(["a"])
    await embedder.close()
    eager = LocalEmbedder(tmp_path, eager=True)
    with pytest.raises(
        SettingsError, match=r"EMBEDDER=minilm: .* run `sluice model install` again"
    ):
        await eager.start(services())
    await eager.close()


def test_problems_that_make_the_model_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "run `sluice model install`" in find_model_problem(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "cannot be read" in find_model_problem(tmp_path)
    assert find_model_problem(weights()) == ""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "numpy is not installed" in find_model_problem(weights())


def test_numpy_is_imported_on_demand() -> None:
    """A worker without embeddings does not import numpy; others use one BLAS thread."""
    code = f"""
import asyncio, os, sys
from pathlib import Path
from worker.features.embedding.local import LocalEmbedder
from worker.features.rag.vectors.base import new_memory_index
assert "numpy" not in sys.modules
async def main():
    embedder = LocalEmbedder(Path({str(weights())!r}))
    before = dict(os.environ)
    await embedder.embed(["x " * 200] * 2)
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
