"""A sandboxed worker runs all steps of a workflow, including its child processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.system.machine import Machine
from tests.system.sluice import URL, ask, assert_no_warnings, replace_worker

JOBS = f"{URL}/api/workflow/jobs"
UNIT = "redis-worker@flow"
TEXT = "Failed jobs go to the dead letter queue (DLQ). An operator reads the dead letter queue."
TIMEOUT_S = 60.0


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
    replace_worker(machine, UNIT)
    return machine


def test_a_workflow_changes_rag_search_results(workflow_machine: Machine) -> None:
    sources = [{"type": "text", "title": "queues", "text": TEXT}]
    body = {"auto_advance": True, "namespace": "notes", "sources": sources}
    made = ask(workflow_machine, JOBS, body)
    job_id = made["job"]["job_id"]
    wait_for(workflow_machine, job_id, "waiting_input")
    bulk = f"{JOBS}/{job_id}/proposals/bulk"
    decided = ask(workflow_machine, bulk, {"action": "approve", "all": True})
    assert decided["success"], decided
    job = wait_for(workflow_machine, job_id, "completed")
    assert [step["status"] for step in job["stepper"]] == ["complete"] * 7
    assert [step["attempt"] for step in job["stepper"]] == [1] * 7
    hits = ask(workflow_machine, f"'{URL}/v1/rag/notes/search?q=DLQ'")["hits"]
    assert [hit["title"] for hit in hits] == ["queues"]
    assert_no_warnings(workflow_machine, UNIT)  # no Redis command was denied
