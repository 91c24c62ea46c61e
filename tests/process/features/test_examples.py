"""The examples in `examples/` and in the documentation work, as a reader would copy them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.features import WorkflowProcesses
from tests.support.processes.jobs import events, field, post, types, wait_for
from tests.support.processes.worker import ROOT, Process
from tests.support.servers import RealServer

pytestmark = pytest.mark.process
EXAMPLES = ROOT / "examples"

# -- handlers and tools ------------------------------------------------------------------------


class ExampleWorker:
    """A worker with one of the modules in `examples/`."""

    def __init__(self, server: RealServer, directory: Path, module: str) -> None:
        self.client = server.client
        self.notes = directory
        self.process = Process(
            "worker", directory / f"{module}.log", redis_url=server.url, worker_handlers=module,
            pythonpath=EXAMPLES, notes_dir=directory, block_ms=50,
        )  # fmt: skip

    def run(self, task: str, payload: object) -> str:
        """Runs a job to its end; returns its id."""
        job_id = post(self.client, json.dumps(payload), task)
        wait_for(self.client, job_id, b"done", b"error")
        return job_id

    def result(self, task: str, payload: object) -> Any:
        return field(self.client, self.run(task, payload), "result")

    def error(self, task: str, payload: object) -> Any:
        return field(self.client, self.run(task, payload), "error")


@pytest.fixture
def example_worker(
    one_server: RealServer, tmp_path: Path
) -> Iterator[Callable[[str], ExampleWorker]]:
    started: list[ExampleWorker] = []

    def start(module: str) -> ExampleWorker:
        started.append(ExampleWorker(one_server, tmp_path, module))
        return started[-1]

    yield start
    for worker in started:
        worker.process.kill()


def test_example_handlers(example_worker: Callable[[str], ExampleWorker]) -> None:
    worker = example_worker("handlers")
    job_id = worker.run("chat", {"text": "never lose it"})
    words = [event["text"] for event in events(worker.client, job_id, b"message")]
    assert words == ["never", "lose", "it"]
    assert field(worker.client, job_id, "result") == {"words": 3}
    job_id = worker.run("code", {"upto": 3})
    assert [event["at"] for event in events(worker.client, job_id, b"progress")] == [1, 2, 3]
    assert field(worker.client, job_id, "result") == [1, 2, 3]
    assert worker.error("tool", {"name": "hammer"})["kind"] == "no_such_tool"
    assert worker.error("chat", {"text": ""})["kind"] == "invalid_payload"
    # Other tasks keep the built-in handler.
    error = worker.error("embed", {"a": 1})
    assert error["kind"] == "invalid_payload"
    assert "a: Extra inputs" in error["message"]
    worker.process.popen.terminate()
    assert worker.process.wait() == 0


@pytest.mark.slow("starts another worker")
def test_example_tools(example_worker: Callable[[str], ExampleWorker]) -> None:
    worker = example_worker("tools")
    job_id = worker.run("tool", {"tool": "roll", "args": {"dice": 3}})
    output = field(worker.client, job_id, "result")["output"]
    assert len(output["rolled"]) == 3
    assert output["sum"] == sum(output["rolled"])
    assert types(worker.client, job_id)[-3:] == [b"tool_call", b"tool_result", b"done"]
    job_id = worker.run("tool", {"tool": "take_note", "args": {"text": "buy milk"}})
    name = f"{job_id}-call.txt"
    assert field(worker.client, job_id, "result")["output"] == f"stored as {name}"
    assert (worker.notes / name).read_text() == "buy milk"
    delete = {"tool": "delete_notes", "args": {"text": "milk"}}
    assert worker.result("tool", delete)["output"] == 1
    assert worker.error("tool", delete)["kind"] == "no_notes"
    error = worker.error("tool", {"tool": "roll", "args": {"dice": 1000}})
    assert error["kind"] == "tool_arguments_invalid"
    assert 'at "/dice"' in error["message"]


# -- third parties -----------------------------------------------------------------------------


def third_party(server: RealServer, program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLES / "third_party" / program), server.url, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def produce(server: RealServer, payload: object) -> str:
    producer = third_party(server, "producer.py", "chat", json.dumps(payload))
    output, _ = producer.communicate(timeout=30)
    assert producer.returncode == 0
    return output.strip()


def test_example_producer(one_server: RealServer, spawn: Callable[..., Process]) -> None:
    job_id = produce(one_server, {"text": "hello"})
    spawn("worker.echo_worker", redis_url=one_server.url)
    wait_for(one_server.client, job_id, b"done")
    text = "echo(task=chat): {'text': 'hello'}"
    assert field(one_server.client, job_id, "result")["text"] == text
    assert types(one_server.client, job_id) == [b"queued", b"running", b"message", b"done"]


def test_example_worker(one_server: RealServer) -> None:
    client = one_server.client
    canceled, job_id = produce(one_server, {}), produce(one_server, {"text": "hello"})
    client.hset(f"job:{canceled}", "status", "canceled")
    worker = third_party(one_server, "worker.py", "third-party-1")
    try:
        wait_for(client, job_id, b"done")
        assert field(client, job_id, "result") == {"text": "hello"}
        assert types(client, job_id) == [b"queued", b"running", b"done"]
        assert types(client, canceled) == [b"queued"]
        assert 0 < client.ttl(f"job:{job_id}") <= 3600
        deadline = time.monotonic() + 10
        while client.xpending("jobs:stream", "workers")["pending"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        worker.kill()
        worker.communicate()


# -- the workflow: commits in, decisions, release notes out, and undo -----------------------------

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
def workflows(
    one_server: RealServer, start_processes: Callable[..., WorkflowProcesses]
) -> WorkflowProcesses:
    workflows = start_processes(WorkflowProcesses, one_server.url)
    workflows.worker(worker_handlers="release_notes", pythonpath=EXAMPLES / "workflow")
    return workflows


@pytest.mark.slow("starts a gateway and a worker")
def test_release_notes(workflows: WorkflowProcesses) -> None:
    steps = {"collect": {"log": LOG}, "publish": {"version": "1.3"}}
    job_id = workflows.create("release_notes_v1", steps=steps)
    job = workflows.wait_for_status(job_id, "waiting_input")
    assert (job["current_step"], job["progress"]) == ("review", 0.5)
    assert [item["payload"]["subject"] for item in workflows.items(job_id, "collect")] == [
        "feat(cli): watch a job",
        "fix: no zombie is left behind.",
        "Fixes a typo",
        "tidy up",
    ]
    drafted = workflows.items(job_id, "draft")
    assert [(item["id"], item["payload"]["section"]) for item in drafted] == [
        ("d_001", "Added"),
        ("d_002", "Fixed"),
        ("d_003", "Fixed"),
        ("d_004", "Changed"),
    ]
    edit = {"to": "No child is left behind"}
    status, answer = workflows.ask("PATCH", f"/{job_id}/proposals/d_002/ontology", edit)
    assert status == 200, answer
    actions = {"d_001": "approve", "d_003": "reject", "d_004": "reject"}
    decisions = [{"id": item_id, "action": action} for item_id, action in actions.items()]
    body = {"payload": {"decisions": decisions}}
    status, answer = workflows.ask("POST", f"/{job_id}/steps/review/execute", body)
    assert (status, answer["success"]) == (200, True), answer
    job = workflows.wait_for_status(job_id, "completed")
    assert job["draft_state"] == "clean"
    [notes] = workflows.items(job_id, "publish")
    assert notes["payload"] == {"markdown": NOTES, "lines": 2}

    def drafts() -> list[str]:
        return [item["status"] for item in workflows.items(job_id, "draft")]

    assert drafts() == ["applied", "applied", "rejected", "rejected"]
    undo = {"undo_token": job["undo"]["last_undo_token"]}
    status, answer = workflows.ask("POST", f"/{job_id}/undo", undo)
    assert status == 200, answer
    assert drafts() == ["approved", "approved", "rejected", "rejected"]

    # Invalid input.
    job_id = workflows.create("release_notes_v1", auto_advance=False)
    path = f"/{job_id}/steps/collect/execute"
    status, answer = workflows.ask("POST", path, {"payload": {"log": "wip\n"}, "wait_s": 20})
    assert (status, answer["success"]) == (200, False), answer
    assert [error["code"] for error in answer["errors"]] == ["step_failed", "no_changes"]
    status, answer = workflows.ask("POST", path, {"payload": {"log": 3}})
    assert status == 422, answer
    body = {"payload": {"log": "fix: it"}, "wait_s": 20}
    status, answer = workflows.ask("POST", path, body)
    assert (status, answer["success"]) == (200, True), answer
