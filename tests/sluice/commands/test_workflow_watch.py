"""`sluice workflow watch` against a scripted gateway."""

from __future__ import annotations

import json

import pytest

from sluice.errors import ExitCode
from tests.support.client.scripted_gateway import Reply, ScriptedGateway, answer, event, stream
from tests.support.processes.commands import CommandResult, run_here

pytestmark = pytest.mark.usefixtures("short_pauses")
JOB = "wf_20260214_001"
STEPPER = [{"name": "sources", "status": "complete"}, {"name": "review", "status": "running"}]
HELLO = event("", "hello", {"status": "running"}, retry_ms=1)
COMPLETED = event("9-0", "job.completed", {"counts": {}})
END = answer(204)


def job(status: str) -> Reply:
    found = {
        "job_id": JOB, "workflow": "memory_first_v2", "status": status, "current_step": "review",
        "progress": 0.8, "stepper": STEPPER,
    }  # fmt: skip
    return answer(200, {"success": True, "job": found})


def watch(script: ScriptedGateway, *replies: Reply, words: tuple[str, ...] = ()) -> CommandResult:
    """Runs the command to its end; it requests the job before and after its events."""
    script.respond(job("running"), *replies)
    return run_here("workflow", "watch", JOB, "--url", script.url, *words)


def resumed(script: ScriptedGateway) -> list[str | None]:
    """The last event that each request for the stream named."""
    streams = [each for each in script.requests if each.path.endswith("/events/stream")]
    return [each.headers.get("last-event-id") for each in streams]


def test_events_are_shown_until_the_job_has_completed(script: ScriptedGateway) -> None:
    data = {"step": "sources", "summary": "3 sources", "count": 3}
    events = stream(HELLO, event("1-0", "step.completed", data), COMPLETED)
    ran = watch(script, events, END, job("completed"))
    assert (ran.code, ran.err) == (0, "")
    assert f"{JOB}  memory_first_v2: sources, review" in ran.out
    assert "step.completed      sources  3 sources  count=3" in ran.out
    assert ran.out.splitlines()[-1] == "completed (80%)"
    assert "hello" not in ran.out


def test_a_lost_stream_resumes_after_the_last_event(script: ScriptedGateway) -> None:
    ran = watch(
        script,
        stream(HELLO, event("7-0", "step.started", {"step": "sources"}), cut=True),
        answer(503),
        stream(HELLO, COMPLETED),
        END,
        job("completed"),
        words=("-o", "jsonl"),
    )
    assert ran.code == 0, ran.err
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [(line["id"], line["type"]) for line in lines] == [
        ("7-0", "step.started"),
        ("9-0", "job.completed"),
    ]
    assert resumed(script) == [None, "7-0", "7-0", "9-0"]
    assert "reconnecting" in ran.err


FAULT = {"step": "sources", "errors": [{"code": "step_failed", "message": "no space"}]}
HOSTILE = {"step": "x", "summary": "\x1b[2Jgone\r\nmore"}
WAITING = event("1-0", "job.waiting_input", {"step": "review", "pending": 2})


@pytest.mark.parametrize(
    ("replies", "code", "shown"),
    [
        ([stream(event("1-0", "step.failed", FAULT)), END, job("failed")],
         ExitCode.FAILED, "step_failed: no space"),
        ([stream(event("1-0", "job.cancelled")), END, job("cancelled")],
         ExitCode.CANCELED, "cancelled (80%)"),
        # A failed job may be resumed.
        ([stream(event("1-0", "job.failed")), stream(COMPLETED), END, job("completed")],
         ExitCode.OK, "completed (80%)"),
        # The wait has ended meanwhile.
        ([stream(WAITING, COMPLETED), job("completed"), END, job("completed")],
         ExitCode.OK, "completed (80%)"),
        ([END, job("completed")], ExitCode.OK, "completed (80%)"),
        ([stream(event("1-0", "step.completed", HOSTILE), COMPLETED), END, job("completed")],
         ExitCode.OK, "?[2Jgone??more"),
    ],
    ids=["failed", "cancelled", "resumed", "decided", "ended before", "control characters"],
)  # fmt: skip
def test_the_end_of_the_job_is_shown(
    script: ScriptedGateway, replies: list[Reply], code: ExitCode, shown: str
) -> None:
    ran = watch(script, *replies)
    assert (ran.code, ran.err) == (code, "")
    assert shown in ran.out
    assert "\x1b" not in ran.out
    assert script.replies == []


def test_a_waiting_review_shows_how_to_decide(script: ScriptedGateway) -> None:
    ran = watch(script, stream(WAITING, hang=True), job("waiting_input"), words=("--until-input",))
    assert ran.code == ExitCode.INPUT_REQUIRED
    assert "pending=2" in ran.out
    assert f"{script.url}/api/workflow/jobs/{JOB}/proposals/bulk" in ran.err
