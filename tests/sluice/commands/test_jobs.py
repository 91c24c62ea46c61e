"""Commands for jobs in a pipe, on a real gateway."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from sluice.errors import ExitCode
from tests.support.client.scripted_gateway import (
    Reply,
    ScriptedGateway,
    answer,
    event,
    problem,
    stream,
)
from tests.support.client.site import Site
from tests.support.processes.commands import run, run_here, unused_url
from tests.support.processes.gateway import environment

pytestmark = pytest.mark.process
UNKNOWN = "00000000-0000-4000-8000-000000000000"


def test_submit_in_a_pipe_prints_only_the_id(site: Site) -> None:
    ran = run("submit", "chat", "good day", "--lane", "normal", SLUICE_URL=site.url)
    assert (ran.code, ran.err) == (0, "")
    [job_id] = ran.out.splitlines()
    shown = site.run("get", job_id, "-o", "json")
    assert json.loads(shown.out)["payload"] == {"text": "good day"}
    as_json = site.run("submit", "chat", "good day", "-o", "json")
    assert set(json.loads(as_json.out)) == {"job_id"}
    refused = site.run("submit", "chat", "good day", "--lane", "high")
    assert refused.code == ExitCode.USAGE
    assert "lane" in refused.err


def test_submit_with_wait_and_stream(site: Site) -> None:
    ran = site.run("submit", "chat", "--wait", "good day")
    assert ran.code == 0
    assert json.loads(ran.out) == {"text": "good day", "words": 2}
    assert len(ran.err.splitlines()) == 1  # the id
    ran = site.run("submit", "--wait", "--text", "-q", "chat", "good day")
    assert (ran.code, ran.out, ran.err) == (0, "good day\n", "")
    ran = site.run("submit", "chat", "good day", "--stream")
    assert (ran.code, ran.out) == (0, "good day \n")
    assert [line.split()[0] for line in ran.err.splitlines()[1:]] == ["queued", "running", "done"]


def test_payload_from_a_file_or_stdin(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"text": "from a file"}')
    ran = site.run("submit", "chat", "-f", str(file), "--wait", "--text")
    assert ran.out == "from a file\n"
    ran = site.run("submit", "chat", "-f", "-", "--wait", "--text", stdin=b"words\n")
    assert ran.out == "words\n"
    ran = site.run("submit", "chat", "-", "--wait", "--text", stdin=b"words\n")
    assert ran.out == "words\n"
    ran = site.run("submit", "chat", "-f", "/no/such/file")
    assert ran.code == ExitCode.IO_ERROR
    assert "/no/such/file" in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "chat"),
        ("submit", "chat", "{no json"),
        ("submit", "tool", "words"),
        ("submit", "chat", "hi", "-f", "-"),
        ("submit", "chat", "hi", "--ttl", "soon"),
        ("ls", "--since", "yesterday"),
        ("submit", "chat", "hi", "--stream", "--wait"),
        ("submit", "nothing", "hi"),
        ("ls", "--status", "odd"),
        ("ls", "-n", "0"),
        ("ls", "--watch", "-o", "json"),
        ("cancel",),
        ("cancel", "--all-matching", "--status", "done"),
        ("cancel", "--all-matching", UNKNOWN),
        ("dlq", "redrive"),
        ("dlq", "purge", "--all", "--reason", "exhausted"),
        ("wtach",),
        (),
    ],
)
def test_invalid_arguments_exit_2(site: Site, words: tuple[str, ...]) -> None:
    ran = site.run(*words)
    assert ran.code == ExitCode.USAGE
    assert ran.out == ""
    assert ran.err


def test_failed_job_exits_1_and_prints_the_error(site: Site) -> None:
    ran = site.run("submit", "chat", "fail", "--wait")
    assert (ran.code, ran.out) == (ExitCode.FAILED, "")
    assert "failed: handler_error: no ?[31mspace" in ran.err
    job_id = site.submit("fail")
    ran = site.run("watch", job_id)
    assert (ran.code, ran.out) == (ExitCode.FAILED, "")
    assert "no ?[31mspace" in ran.err
    assert site.run("result", job_id).code == ExitCode.FAILED
    assert site.run("get", job_id).code == ExitCode.OK
    resumed = site.run("watch", job_id, "--from", "9999999999999-0")
    assert resumed.code == ExitCode.FAILED


def test_timeouts_and_cancel_of_a_long_job(site: Site) -> None:
    job_id = site.submit("forever")
    site.wait_for(job_id, "running")
    ran = site.run("watch", job_id, "--timeout", "500ms")
    assert ran.code == ExitCode.TIMEOUT
    assert ran.out == "well … \n"
    assert site.run("result", job_id).code == ExitCode.TIMEOUT
    assert site.run("result", job_id, "--wait", "--timeout", "0.2").code == ExitCode.TIMEOUT
    ran = site.run("cancel", job_id, "--reason", "enough", "-o", "jsonl")
    assert json.loads(ran.out)["job_id"] == job_id
    ran = site.run("watch", job_id)
    assert ran.code == ExitCode.CANCELED
    assert "reason=enough" in ran.err
    assert site.run("result", job_id).code == ExitCode.CANCELED


def test_watch_several_jobs(site: Site) -> None:
    jobs = [site.submit("one two"), site.submit("fail"), site.submit("three")]
    ran = site.run("watch", *jobs)
    assert ran.code == ExitCode.FAILED
    lines = ran.out.splitlines()
    for job_id in jobs:
        assert any(line.startswith(job_id[:8]) for line in lines)
    ran = site.run("watch", jobs[0], jobs[2], "-o", "jsonl")
    assert ran.code == ExitCode.OK
    events = [json.loads(line) for line in ran.out.splitlines()]
    assert {event["job_id"] for event in events} == {jobs[0], jobs[2]}
    assert sum(event["type"] == "done" for event in events) == 2


@pytest.mark.usefixtures("short_pauses")
def test_watch_resumes_a_lost_stream(script: ScriptedGateway) -> None:
    times = {"created_ts": 1, "updated_ts": 1, "ttl_s": 600}
    job = {"job_id": UNKNOWN, "task": "chat", "status": "running", **times}
    running, text = event("1-0", "running", {"attempt": 1}), event("2-0", "message", {"text": "hi"})
    lost, rest = stream(running, text, cut=True), stream(event("3-0", "canceled"))
    script.respond(answer(200, job), lost, rest)
    ran = run_here("watch", UNKNOWN, SLUICE_URL=script.url)
    assert ran.code == ExitCode.CANCELED, ran
    assert script.requests[-1].headers["last-event-id"] == "2-0"
    assert "reconnecting" in ran.err
    assert (ran.out.count("hi"), ran.err.count("running")) == (1, 1), "every event once"


def test_events_prints_json_lines(site: Site) -> None:
    job_id = site.submit("a b")
    ran = site.run("events", job_id)
    events = [json.loads(line) for line in ran.out.splitlines()]
    types = [event["type"] for event in events]
    assert types == ["queued", "running", "message", "message", "done"]
    ran = site.run("events", job_id, "--from", events[2]["id"], "--type", "done")
    assert [json.loads(line)["id"] for line in ran.out.splitlines()] == [events[-1]["id"]]
    assert len(site.run("events", job_id, "-n", "2").out.splitlines()) == 2
    assert "worker.start" in site.run("events", job_id, "-o", "table").out


def test_get_as_table_and_single_field(site: Site) -> None:
    job_id = site.submit("a b")
    site.wait_for(job_id, "done")
    shown = site.run("get", job_id).out
    assert [line.split()[0] for line in shown.splitlines()][:3] == ["job", "task", "status"]
    assert '"words": 2' in shown
    assert site.run("get", job_id, "--field", "result.words").out == "2\n"
    assert site.run("get", job_id, "--field", "payload.text").out == "a b\n"
    missing = site.run("get", job_id, "--field", "result.nothing")
    assert (missing.code, missing.out) == (ExitCode.NOT_FOUND, "")
    assert site.run("result", job_id, "--text").out == "a b\n"


def test_retry_submits_the_same_payload(site: Site) -> None:
    old = site.submit("again and again")
    [new] = site.run("retry", old).out.split()
    assert new != old
    ran = site.run("result", new, "--wait", "--text")
    assert ran.out == "again and again\n"
    ran = site.run("retry", old, "--stream")
    assert (ran.code, ran.out) == (0, "again and again \n")


def test_trace_phases_add_up(site: Site) -> None:
    job_id = site.submit("a b c")
    site.wait_for(job_id, "done")
    hops = [json.loads(line) for line in site.run("trace", job_id, "-o", "jsonl").out.splitlines()]
    assert [hop["name"] for hop in hops] == [
        "http → queue",
        "queue wait",
        "attempt 1 → first word",
        "words",
    ]
    assert hops[-1]["note"] == "3 pieces"
    for before, after in pairwise(hops):
        assert before["at_ms"] + before["took_ms"] == after["at_ms"]
    assert "queue wait" in site.run("trace", job_id).out


def test_closed_pipe_is_not_an_error(site: Site) -> None:
    job_id = site.submit("a b")
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m sluice events {job_id} | true; echo $PIPESTATUS"],
        env=environment(SLUICE_URL=site.url), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")


def test_output_in_a_pipe_is_unchanged(site: Site) -> None:
    ran = site.run("submit", "chat", "hostile", "--wait", "--text", "-q")
    assert ran.out == "a\x1b[2Jb\x07c\u202ed\n"


def test_an_id_with_a_line_break_is_a_usage_error(site: Site) -> None:
    ran = site.run("get", "a\nb")
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert "control character" in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("get", UNKNOWN), ("watch", UNKNOWN), ("events", UNKNOWN), ("result", UNKNOWN),
        ("retry", UNKNOWN), ("trace", UNKNOWN), ("cancel", UNKNOWN), ("get", "../keys"),
        ("token", UNKNOWN), ("token", "wf_20200101_001", "--workflow"),
        ("get", "."), ("get", ""), ("dlq", "show", "1-1"), ("image", "show", "x"),
        ("workflow", "show", "wf_20200101_001"), ("worker", "show", "unknown"),
        ("get", "a b"), ("watch", "ä"), ("workflow", "watch", "wf_20200101_001"),
        ("workflow", "watch", "../../v1/keys"), ("workflow", "watch", "wf_1?x=y#z"),
    ],
)  # fmt: skip
def test_unknown_objects_exit_66(site: Site, words: tuple[str, ...]) -> None:
    ran = site.run(*words)
    assert ran.code == ExitCode.NOT_FOUND, ran
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1


def test_token_reads_its_job(site: Site) -> None:
    job_id = site.submit("a b")
    [token] = site.run("token", job_id, "--ttl", "1m").out.split()
    assert site.run("get", job_id, SLUICE_API_KEY=token).code == 0
    refused = site.run("get", site.submit("c"), SLUICE_API_KEY=token)
    assert refused.code == ExitCode.AUTH
    assert set(json.loads(site.run("token", job_id, "-o", "json").out)) == {"token", "expires_ts"}
    assert site.run("token", job_id, "--ttl", "2h").code == ExitCode.USAGE


def test_short_id_prints_how_to_search_for_it(site: Site) -> None:
    job_id = site.submit("a b")
    ran = site.run("get", job_id[:8])
    assert ran.code == ExitCode.NOT_FOUND
    assert f"sluice ls -s {job_id[:8]} --ids" in ran.err
    assert site.run("ls", "-s", job_id[:8], "--ids").out.split() == [job_id]


def test_job_that_has_not_ended(site: Site) -> None:
    ran = site.run("submit", "chat", "later", "--delay", "1h", "--wait", "--timeout", "0.3s")
    assert ran.code == ExitCode.TIMEOUT
    assert "did not end within 0.3 s; it keeps running" in ran.err
    job_id = ran.err.split()[0]
    [row] = [line for line in site.run("ls", "-n", "9").out.splitlines() if job_id in line]
    assert re.search(r"queued .* - +-$", row), "it took no time yet, and has no error"
    assert "canceled" in site.run("cancel", job_id).out
    done = site.submit("a b")
    site.wait_for(done, "done")
    assert "had already ended" in site.run("cancel", done).out


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(
    "words",
    [
        ("ls",), ("submit", "chat", "hi"), ("top", "-n", "1"), ("queue", "ls"), ("bench",),
        ("audit",), ("workflow", "watch", "wf_20260214_001"),
    ],
)  # fmt: skip
def test_no_gateway_exits_5_with_advice(words: tuple[str, ...]) -> None:
    url = unused_url()
    ran = run_here(*words, SLUICE_URL=url)
    assert (ran.code, ran.out) == (ExitCode.UNREACHABLE, "")
    assert all(each in ran.err for each in (url, "sluice up"))


def test_invalid_url_exits_78() -> None:
    ran = run_here("ls", "--url", "gateway:8080")
    assert ran.code == ExitCode.MISCONFIGURED
    [line] = ran.err.splitlines()
    assert "'gateway:8080'" in line
    assert "SLUICE_URL" in line


def test_invalid_key_exits_4(site: Site) -> None:
    assert site.run("ls", SLUICE_API_KEY="sluice_nonsense").code == ExitCode.AUTH


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (problem(401, "key_required"), ExitCode.AUTH),
        (problem(403, "insufficient_scope"), ExitCode.AUTH),
        (problem(429, "queue_full", Retry_After="1"), ExitCode.BACKPRESSURE),
    ],
)
def test_refused_submission_has_an_exit_code(
    script: ScriptedGateway, monkeypatch: pytest.MonkeyPatch, refusal: Reply, code: ExitCode
) -> None:
    monkeypatch.setattr("sluice.commands.jobs.submit.PERSISTENT_RETRIES", 0)
    script.respond(refusal)
    ran = run_here("submit", "chat", "one", SLUICE_URL=script.url)
    assert (ran.code, ran.out) == (code, "")
    assert "it says" in ran.err
