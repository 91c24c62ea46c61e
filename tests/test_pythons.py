from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import pythons


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory of PATH; pyenv's versions are in `pyenv` next to it."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.delenv("CI", raising=False)
    return tmp_path / "bin"


def put(directory: Path, name: str, text: str) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(text)
    (directory / name).chmod(0o755)
    return str(directory / name)


WORKS = f"#!{sys.executable}\nprint('3.99')\n"
BROKEN = "#!/bin/sh\nexit 127\n"


def test_the_first_interpreter_that_runs_is_found(on_path: Path) -> None:
    put(on_path, "python3.99", BROKEN)
    assert pythons.find("python3.99") is None
    versions = on_path.parent / "pyenv" / "versions"
    of_pyenv = put(versions / "3.99.1" / "bin", "python3.99", WORKS)
    assert pythons.find("python3.99") == of_pyenv
    of_path = put(on_path, "python3.99", WORKS)
    assert pythons.find("python3.99") == of_path


@pytest.mark.parametrize(("in_ci", "code"), [("", 0), ("true", 1)])
def test_a_missing_python_fails_only_in_ci(
    on_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    in_ci: str,
    code: int,
) -> None:
    monkeypatch.setenv("CI", in_ci)
    assert pythons.main(["python3.99"]) == code
    error = capsys.readouterr().err
    assert "python3.99 is not installed" in error
    assert ("skipped: " in error) == (code == 0)
