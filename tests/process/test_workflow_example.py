"""The workflow example works: commits in, decisions, release notes out, and undo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.workflow_rig import Stage
from tests.support.backends import BUNDLED, RealServer, require_binary
from tests.worker.processes import ROOT, Process

pytestmark = pytest.mark.process

LOG = """\
feat(cli): watch a job
Merge branch 'main'
fix: no zombie is left behind.

Fixes a typo
wip
tidy up
feat(cli): watch a job
"""
NOTES = """\
## 1.3

### Added

- Cli: watch a job

### Fixed

- No child is left behind
"""


@pytest.fixture
def stage(spawn: Callable[..., Process], tmp_path: Path) -> Iterator[Stage]:
    server = RealServer(require_binary(BUNDLED))
    made = Stage(server.url, spawn, tmp_path)
    made.worker(
        "one", worker_handlers="release_notes", pythonpath=str(ROOT / "examples" / "workflow")
    )
    yield made
    made.close()
    server.close()


def items(stage: Stage, job_id: str, step: str) -> list[dict[str, Any]]:
    status, answer = stage.ask("GET", f"/{job_id}/results?step={step}")
    assert status == 200, answer
    found: list[dict[str, Any]] = answer["result"]["items"]
    return found


def test_release_notes(stage: Stage) -> None:
    steps = {"collect": {"log": LOG}, "publish": {"version": "1.3"}}
    job_id = stage.create("release_notes_v1", steps=steps)
    job = stage.wait_for_status(job_id, "waiting_input")
    assert (job["current_step"], job["progress"]) == ("review", 0.5)
    assert [item["payload"]["subject"] for item in items(stage, job_id, "collect")] == [
        "feat(cli): watch a job",
        "fix: no zombie is left behind.",
        "Fixes a typo",
        "tidy up",
    ]
    drafted = items(stage, job_id, "draft")
    assert [(item["id"], item["payload"]["section"]) for item in drafted] == [
        ("d_001", "Added"),
        ("d_002", "Fixed"),
        ("d_003", "Fixed"),
        ("d_004", "Changed"),
    ]
    edit = {"to": "No child is left behind"}
    status, answer = stage.ask("PATCH", f"/{job_id}/proposals/d_002/ontology", edit)
    assert status == 200, answer
    decisions = [
        {"id": "d_001", "action": "approve"},
        {"id": "d_003", "action": "reject"},
        {"id": "d_004", "action": "reject"},
    ]
    body = {"payload": {"decisions": decisions}}
    status, answer = stage.ask("POST", f"/{job_id}/steps/review/execute", body)
    assert (status, answer["success"]) == (200, True), answer
    job = stage.wait_for_status(job_id, "completed")
    assert job["draft_state"] == "clean"
    [notes] = items(stage, job_id, "publish")
    assert notes["payload"] == {"markdown": NOTES, "lines": 2}
    assert [item["status"] for item in items(stage, job_id, "draft")] == [
        "applied",
        "applied",
        "rejected",
        "rejected",
    ]
    status, answer = stage.ask(
        "POST", f"/{job_id}/undo", {"undo_token": job["undo"]["last_undo_token"]}
    )
    assert status == 200, answer
    assert [item["status"] for item in items(stage, job_id, "draft")] == [
        "approved",
        "approved",
        "rejected",
        "rejected",
    ]


def test_invalid_input(stage: Stage) -> None:
    job_id = stage.create("release_notes_v1", auto_advance=False)
    path = f"/{job_id}/steps/collect/execute"
    status, answer = stage.ask("POST", path, {"payload": {"log": "wip\n"}, "wait_s": 20})
    assert (status, answer["success"]) == (200, False), answer
    assert [error["code"] for error in answer["errors"]] == ["step_failed", "no_changes"]
    status, answer = stage.ask("POST", path, {"payload": {"log": 3}})
    assert status == 422, answer
    body = {"payload": {"log": "fix: it"}, "wait_s": 20}
    status, answer = stage.ask("POST", path, body)
    assert (status, answer["success"]) == (200, True), answer
