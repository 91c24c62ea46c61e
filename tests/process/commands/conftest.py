"""Commands that run in the test's own process, which is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.client.scripted_gateway import ScriptedGateway
from tests.support.files.gguf import HEAD, build_gguf
from tests.support.model.served import FAKE_ENGINE, Served
from tests.support.processes.commands import CommandResult, run_here


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., CommandResult]:
    """Runs `sluice` with these words, in an empty directory and with these settings only."""
    monkeypatch.chdir(tmp_path)
    return run_here


@pytest.fixture
def script() -> Iterator[ScriptedGateway]:
    script = ScriptedGateway()
    yield script
    script.close()


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "xllamacpp.py").write_text(FAKE_ENGINE)
    return tmp_path / "engine"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(build_gguf(HEAD))
    return path


@pytest.fixture
def serve(tmp_path: Path, engine: Path) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(*words: object, **env: str) -> Served:
        env.setdefault("PYTHONPATH", str(engine))
        started.append(Served(tmp_path / f"served-{len(started)}", *map(str, words), **env))
        return started[-1]

    yield start
    for served in started:
        served.close()
