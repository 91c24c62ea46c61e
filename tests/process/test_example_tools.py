"""The tools in `examples/tools.py` work in a real worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.test_examples import ROOT, run
from tests.support.backends import BUNDLED, RealServer, require_binary


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notes")


@pytest.fixture(scope="module")
def server(notes: Path) -> Iterator[RealServer]:
    server = RealServer(require_binary(BUNDLED))
    env = {
        **os.environ,
        "REDIS_URL": server.url,
        "PYTHONPATH": str(ROOT / "examples"),
        "WORKER_HANDLERS": "tools",
        "NOTES_DIR": str(notes),
        "BLOCK_MS": "50",
    }
    worker = subprocess.Popen(
        [sys.executable, "-m", "worker"], env=env, cwd=ROOT, stderr=subprocess.DEVNULL
    )
    yield server
    worker.terminate()
    assert worker.wait(20) == 0
    server.close()


def test_dice(server: RealServer) -> None:
    job, events = run(server, "tool", {"tool": "roll", "args": {"dice": 3}})
    output = json.loads(job[b"result"])["output"]
    assert len(output["rolled"]) == 3
    assert output["sum"] == sum(output["rolled"])
    kinds = [kind for kind, _ in events]
    assert kinds[-3:] == [b"tool_call", b"tool_result", b"done"]


def test_notes_are_written_and_deleted(server: RealServer, notes: Path) -> None:
    job, _ = run(server, "tool", {"tool": "take_note", "args": {"text": "buy milk"}})
    name = f"{job[b'job_id'].decode()}-call.txt"
    assert json.loads(job[b"result"])["output"] == f"stored as {name}"
    assert (notes / name).read_text() == "buy milk"
    job, _ = run(server, "tool", {"tool": "delete_notes", "args": {"text": "milk"}})
    assert json.loads(job[b"result"])["output"] == 1
    job, _ = run(server, "tool", {"tool": "delete_notes", "args": {"text": "milk"}})
    assert json.loads(job[b"error"])["kind"] == "no_notes"


def test_invalid_arguments_are_refused(server: RealServer) -> None:
    job, _ = run(server, "tool", {"tool": "roll", "args": {"dice": 1000}})
    error = json.loads(job[b"error"])
    assert error["kind"] == "tool_arguments_invalid"
    assert 'at "/dice"' in error["message"]
