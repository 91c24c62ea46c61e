"""Workflows whose worker, gateway or Redis is killed, frozen or emptied during a step."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from sluice.common.process.crashpoints import CRASH_VARIABLE, CrashPoint
from tests.support.processes.features import WorkflowProcesses
from tests.support.processes.gateway import GatewayProcess, StartGateway
from tests.support.processes.worker import TIMEOUT_S, Process, wait_until
from tests.support.servers import RealServer

pytestmark = [pytest.mark.process, pytest.mark.slow("starts a gateway and workers")]

ALL_EVENTS = [
    "job.created",
    "step.started slow",
    "step.completed slow",
    "step.started suggest",
    "step.completed suggest",
    "step.started review",
    "job.waiting_input review",
]


@pytest.fixture
def processes(
    aof: RealServer, start_processes: Callable[..., WorkflowProcesses]
) -> WorkflowProcesses:
    return start_processes(WorkflowProcesses, aof.url)


def all_approved(processes: WorkflowProcesses, job_id: str) -> dict[str, Any]:
    decisions = [{"id": f"sug_00{n}", "action": "approve"} for n in (1, 2)]
    body = {"payload": {"decisions": decisions}}
    status, answer = processes.ask("POST", f"/{job_id}/steps/review/execute", body)
    assert (status, answer["success"]) == (200, True), answer
    return processes.wait_for_status(job_id, "completed")


def ended_well(processes: WorkflowProcesses, job_id: str) -> None:
    """Every event exists exactly once."""
    processes.wait_for_status(job_id, "waiting_input")
    assert processes.event_log(job_id) == ALL_EVENTS
    job = all_approved(processes, job_id)
    assert job["progress"] == 1.0
    events = [words for words in processes.event_log(job_id) if not words.startswith("item.")]
    assert events == [
        *ALL_EVENTS,
        "step.completed review",
        "step.started last",
        "step.completed last",
        "job.completed last",
    ]


def test_a_worker_is_killed_during_a_step(processes: WorkflowProcesses, aof: RealServer) -> None:
    killed = processes.worker("killed")
    job_id = processes.create("slow_v1")
    processes.wait_for_note("slow 1")
    processes.worker("other")
    os.kill(killed.pid, signal.SIGKILL)
    processes.wait_for_note("slow 2")
    assert processes.status(job_id)["status"] == "running"
    processes.open_gate()
    ended_well(processes, job_id)
    # The job ends a moment after its step.
    wait_until(lambda: aof.client.xpending("jobs:stream", "workers")["pending"] == 0)


def test_a_gateway_is_killed_during_a_step(processes: WorkflowProcesses) -> None:
    processes.worker("one")
    job_id = processes.create("slow_v1")
    processes.wait_for_note("slow 1")
    processes.gateway.stop(signal.SIGKILL)
    processes.open_gate()
    processes.open_gateway()
    ended_well(processes, job_id)


@pytest.mark.parametrize("status", ["running", "waiting_input"], ids=["step", "review"])
def test_redis_restarts(processes: WorkflowProcesses, aof: RealServer, status: str) -> None:
    """During a step, which ends while Redis is down, or during a review."""
    processes.worker()
    if status == "waiting_input":
        processes.open_gate()
    job_id = processes.create("slow_v1")
    processes.wait_for_note("slow 1")
    processes.wait_for_status(job_id, status)
    aof.kill()
    processes.open_gate()
    aof.start()
    ended_well(processes, job_id)


def test_redis_is_emptied_during_a_step(processes: WorkflowProcesses, aof: RealServer) -> None:
    worker = processes.worker("one")
    job_id = processes.create("slow_v1")
    processes.wait_for_note("slow 1")
    aof.client.flushall()
    assert processes.ask("GET", f"/{job_id}/status")[0] == 404
    processes.open_gate()
    # The workflow definitions are registered again, and the next job works.
    again = processes.create("slow_v1")
    assert again == job_id  # its numbers start again
    ended_well(processes, again)
    assert worker.popen.poll() is None
    assert "Traceback" not in worker.log
    assert "Traceback" not in processes.gateway.log


# -- a gateway that dies between a change and its response ---------------------------------------

JOBS = "/api/workflow/jobs"
TEXT = {"type": "text", "title": "t", "text": "A Dead Letter Queue (DLQ) holds what failed."}


def test_a_crash_while_executing_a_step(
    one_server: RealServer, start_gateway: StartGateway, spawn: Callable[..., Process]
) -> None:
    client = one_server.client
    at = f"{CrashPoint.BEFORE_WORKFLOW_ANSWER.value}:2"
    killed = start_gateway(one_server.url, **{CRASH_VARIABLE: at})
    job_id = killed.http.post(JOBS, json={}).json()["job"]["job_id"]
    body = {"payload": {"sources": [TEXT]}, "wait_s": 0}

    def execute(gateway: GatewayProcess) -> httpx.Response:
        path = f"{JOBS}/{job_id}/steps/sources/execute"
        return gateway.http.post(path, json=body, headers={"Idempotency-Key": "once"})

    with pytest.raises(httpx.TransportError):
        execute(killed)
    assert killed.process.wait(TIMEOUT_S) == -signal.SIGKILL, killed.log
    [message] = client.xrange("jobs:stream")
    healthy = start_gateway(one_server.url)

    while (answer := execute(healthy)).status_code == 409:  # the first one may be in progress
        assert answer.json()["errors"][0]["code"] == "request_in_progress", answer.text
        time.sleep(float(answer.headers["retry-after"]))
    assert answer.status_code == 202, answer.text
    assert answer.headers["idempotency-replayed"] == "true"
    execution = answer.json()["execution_id"]

    def step() -> Any:
        return healthy.http.get(f"{JOBS}/{job_id}/status").json()["job"]["stepper"][0]

    assert execution == step()["execution_id"]
    assert client.xrange("jobs:stream") == [message]

    # The started step is run to its end.
    spawn("worker", redis_url=one_server.url, consumer="other", block_ms=50, embedder="off")
    wait_until(lambda: step()["status"] == "complete")
    answer = execute(healthy)
    assert (answer.status_code, answer.json()["success"]) == (200, True)
    assert answer.json()["execution_id"] == execution
    events = healthy.http.get(f"{JOBS}/{job_id}/events").json()["events"]
    kinds = [event["type"] for event in events]
    assert kinds.count("step.started") == kinds.count("step.completed") == 1
