"""`sluice workflow watch` against a fake gateway with scripted responses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.processes import commands
from tests.support.processes.commands import CommandResult, unused_url

JOB = "wf_20260214_001"
STATUS = f"/api/workflow/jobs/{JOB}/status"
STREAM = f"/api/workflow/jobs/{JOB}/events/stream"
STEPPER = [{"name": "sources", "status": "complete"}, {"name": "review", "status": "running"}]


def event(seq: int, kind: str, **data: Any) -> bytes:
    response = json.dumps({"type": kind, "data": data})
    return f"id: {seq}-0\nevent: {kind}\ndata: {response}\n\n".encode()


HELLO = b'retry: 50\nevent: hello\ndata: {"status":"running"}\n\n: still here\n\n'


class Script:
    """Responses in order; the last status is repeated."""

    def __init__(self) -> None:
        self.statuses: list[str] = []
        #: Bytes of a stream, or a status code.
        self.streams: list[bytes | int] = []
        self.resumed: list[str | None] = []

    def status(self) -> str:
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]


class Gateway(ThreadingHTTPServer):
    daemon_threads = True
    script: Script

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: Gateway

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        script = self.server.script
        if self.path == STATUS:
            job = {
                "job_id": JOB, "workflow": "memory_first_v2", "status": script.status(),
                "current_step": "review", "progress": 0.8, "stepper": STEPPER,
            }  # fmt: skip
            self._send(200, json.dumps({"success": True, "job": job}).encode())
        elif self.path == STREAM:
            script.resumed.append(self.headers.get("Last-Event-ID"))
            response = script.streams.pop(0)
            if isinstance(response, int):
                self._send(response, b'{"detail":"not now"}' if response != 204 else b"")
            else:
                self._send(200, response, "text/event-stream")
        else:
            self._send(404, b'{"detail":"There is no workflow job of that id."}')

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    server = Gateway(("127.0.0.1", 0), Answer)
    server.script = Script()
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    yield server
    server.shutdown()
    serving.join()
    server.server_close()


Watch = Callable[..., CommandResult]


@pytest.fixture
def watch(gateway: Gateway, command: Callable[..., CommandResult]) -> Watch:
    return lambda *more, job=JOB: command("workflow", "watch", job, "--url", gateway.url, *more)


def test_events_are_shown_until_the_job_has_completed(gateway: Gateway) -> None:
    gateway.script.statuses = ["running", "completed"]
    gateway.script.streams = [
        HELLO
        + event(1, "step.completed", step="sources", summary="3 sources", count=3)
        + event(2, "job.completed", counts={}),
        204,
    ]
    ended = commands.run("workflow", "watch", JOB, "--url", gateway.url)  # as a process
    assert ended.code == 0, ended.err
    assert f"{JOB}  memory_first_v2: sources, review" in ended.out
    assert "step.completed      sources  3 sources  count=3" in ended.out
    assert ended.out.splitlines()[-1] == "completed (80%)"
    assert "hello" not in ended.out


def test_a_lost_stream_resumes_after_the_last_event(gateway: Gateway, watch: Watch) -> None:
    gateway.script.statuses = ["running", "completed"]
    gateway.script.streams = [
        HELLO + event(7, "step.started", step="sources"),
        503,
        HELLO + event(8, "job.completed"),
        204,
    ]
    ended = watch("-o", "jsonl")
    assert ended.code == 0, ended.err
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert [(line["id"], line["type"]) for line in lines] == [
        ("7-0", "step.started"),
        ("8-0", "job.completed"),
    ]
    assert gateway.script.resumed == [None, "7-0", "7-0", "8-0"]
    assert "reconnecting" in ended.err


@pytest.mark.parametrize(("how", "code"), [("failed", 1), ("cancelled", 3)])
def test_a_failed_job_has_its_own_exit_code(
    gateway: Gateway, watch: Watch, how: str, code: int
) -> None:
    gateway.script.statuses = ["running", how]
    fault = {"code": "step_failed", "message": "no space"}
    gateway.script.streams = [
        event(1, "step.failed", step="sources", errors=[fault]) + event(2, f"job.{how}"),
        204,
    ]
    ended = watch()
    assert ended.code == code
    assert "step_failed: no space" in ended.out


def test_a_resumed_failure_does_not_end_the_command(gateway: Gateway, watch: Watch) -> None:
    gateway.script.statuses = ["running", "completed"]
    gateway.script.streams = [
        event(1, "job.failed"),
        event(2, "step.started", step="sources") + event(3, "job.completed"),
        204,
    ]
    assert watch().code == 0
    assert gateway.script.resumed == [None, "1-0", "3-0"]


def test_a_waiting_review_shows_how_to_decide(gateway: Gateway, watch: Watch) -> None:
    gateway.script.statuses = ["running", "waiting_input"]
    gateway.script.streams = [event(1, "job.waiting_input", step="review", pending=2)]
    ended = watch("--until-input")
    assert ended.code == 8
    assert "pending=2" in ended.out
    assert f"{gateway.url}/api/workflow/jobs/{JOB}/proposals/bulk" in ended.err


def test_a_finished_wait_does_not_end_the_command(gateway: Gateway, watch: Watch) -> None:
    gateway.script.statuses = ["completed"]
    gateway.script.streams = [
        event(1, "job.waiting_input", step="review", pending=1)
        + event(2, "step.completed", step="apply", summary="done")
        + event(3, "job.completed"),
        204,
    ]
    ended = watch()
    assert ended.code == 0
    assert "apply  done" in ended.out
    assert ended.err == ""


def test_a_job_that_has_already_ended_is_shown(gateway: Gateway, watch: Watch) -> None:
    gateway.script.statuses = ["completed"]
    gateway.script.streams = [204]
    ended = watch()
    assert ended.code == 0
    assert ended.out.endswith("completed (80%)\n")


@pytest.mark.parametrize("job", ["wf_20260214_999", "wf_ä", "../../v1/keys", "wf_1?x=y#z", "\n"])
def test_an_unknown_job(watch: Watch, job: str) -> None:
    ended = watch(job=job)
    assert (ended.code, ended.out) == (66, "")
    if job.endswith("999"):
        assert "no workflow job" in ended.err


def test_an_unreachable_gateway_has_a_remedy(command: Callable[..., CommandResult]) -> None:
    ended = command("workflow", "watch", JOB, "--url", unused_url())
    assert ended.code == 5
    assert "sluice up" in ended.err


def test_control_characters_in_events_are_escaped(gateway: Gateway, watch: Watch) -> None:
    gateway.script.statuses = ["running", "completed"]
    gateway.script.streams = [
        event(1, "step.completed", step="x", summary="\x1b[2Jgone\r\nmore")
        + event(2, "job.completed"),
        204,
    ]
    ended = watch()
    assert "?[2Jgone??more" in ended.out
    assert "\x1b" not in ended.out
