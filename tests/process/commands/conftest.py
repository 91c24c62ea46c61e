"""Commands that run in the test's own process, which is faster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice import cli
from tests.support.files.gguf import HEAD, build_gguf
from tests.support.model.served import FAKE_ENGINE, Served
from tests.support.processes.commands import CommandResult
from tests.support.processes.gateway import environment


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., CommandResult]:
    """Runs `sluice` with these words, in an empty directory and with these settings only."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, **settings: str) -> CommandResult:
        with monkeypatch.context() as patch:
            given = environment(**settings)
            for name in os.environ.keys() - given.keys():
                patch.delenv(name)
            for name, value in given.items():
                patch.setenv(name, value)
            capsys.readouterr()
            try:
                code = cli.run(words)
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
        out, err = capsys.readouterr()
        return CommandResult(code, out, err)

    return run


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A directory with a fake engine for models."""
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
    """Starts `sluice model serve` with the fake engine."""
    started: list[Served] = []

    def start(*words: object, **env: str) -> Served:
        env.setdefault("PYTHONPATH", str(engine))
        started.append(Served(tmp_path / f"served-{len(started)}", *map(str, words), **env))
        return started[-1]

    yield start
    for served in started:
        served.close()
