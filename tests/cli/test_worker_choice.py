"""Which worker `sluice up` runs, by what `sluice model serve` has left word of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from client.commands.served_model import FILE
from client.commands.worker_choice import Choice, Kind


@pytest.fixture
def announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a model is announced whose process has ended, as soon as somebody does it."""
    monkeypatch.setenv("SLUICE_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("MODEL_URL", raising=False)
    return tmp_path / FILE


def announce(place: Path) -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    place.write_text(json.dumps({"model": "small", "url": "http://127.0.0.1:9", "pid": ended.pid}))
    return ended.pid


def test_one_that_crashed_is_waited_for_and_mourned_once(announced: Path) -> None:
    choice = Choice("auto")
    assert choice.first() is Kind.ECHO
    pid = announce(announced)
    assert choice.now() is Kind.REAL
    assert list(choice.news()) == [f"small is gone (process {pid}); jobs wait for it: make model"]
    assert choice.now() is Kind.REAL
    assert list(choice.news()) == []


def test_one_that_takes_its_leave_between_two_looks_is_not_mourned(announced: Path) -> None:
    choice = Choice("auto")
    choice.first()
    announce(announced)
    assert choice.now() is Kind.REAL
    announced.unlink()
    assert list(choice.news()) == []
    assert choice.now() is Kind.ECHO
