"""A sandboxed worker runs all steps of a workflow, including its child processes."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from tests.system.machine import Machine
from tests.system.sluice import URL, WORKER, curl

JOBS = f"{URL}/api/workflow/jobs"
UNIT = "redis-worker@flow"
TEXT = "Failed jobs go to the dead letter queue (DLQ). An operator reads the dead letter queue."
TIMEOUT_S = 60.0


def ask(machine: Machine, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = ""
    if body is not None:
        data = f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    response: dict[str, Any] = json.loads(curl(machine, f"{shlex.quote(path)} {data}"))
    return response


def wait_for(machine: Machine, job_id: str, status: str) -> dict[str, Any]:
    def reached() -> dict[str, Any] | None:
        job: dict[str, Any] = ask(machine, f"{JOBS}/{job_id}/status")["job"]
        assert job["status"] in (status, "running"), job["stepper"]
        return job if job["status"] == status else None

    found = machine.wait_for(reached, TIMEOUT_S, f"{job_id} to be {status}")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def workflow_machine(machine: Machine) -> Machine:
    """A machine with a worker for workflows instead of the echo worker."""
    machine.run(f"systemctl disable --now {WORKER} && systemctl enable --now {UNIT}")
    return machine


def test_a_workflow_changes_rag_search_results(workflow_machine: Machine) -> None:
    sources = [{"type": "text", "title": "queues", "text": TEXT}]
    made = ask(
        workflow_machine, JOBS, {"auto_advance": True, "namespace": "notes", "sources": sources}
    )
    job_id = made["job"]["job_id"]
    wait_for(workflow_machine, job_id, "waiting_input")
    decided = ask(
        workflow_machine, f"{JOBS}/{job_id}/proposals/bulk", {"action": "approve", "all": True}
    )
    assert decided["success"], decided
    job = wait_for(workflow_machine, job_id, "completed")
    assert [step["status"] for step in job["stepper"]] == ["complete"] * 7
    assert [step["attempt"] for step in job["stepper"]] == [1] * 7
    hits = ask(workflow_machine, f"{URL}/v1/rag/notes/search?q=DLQ")["hits"]
    assert [hit["title"] for hit in hits] == ["queues"]


def test_no_redis_command_was_denied(workflow_machine: Machine) -> None:
    complaints = workflow_machine.journal("-b", "-p", "warning", f"-u{UNIT}")
    assert complaints in ("", "-- No entries --\n")
