"""Commands for jobs in a pipe, on a real gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from sluice.errors import ExitCode
from tests.support.processes.commands import SLUICE, Stack, run, run_here, unused_url
from tests.support.processes.gateway import PYTHON_M, GatewayProcess, environment
from tests.support.processes.worker import wait_until
from tests.support.servers import BUNDLED, RealServer, require_binary

pytestmark = pytest.mark.process
UNKNOWN = "00000000-0000-4000-8000-000000000000"


def test_submit_in_a_pipe_prints_only_the_id(stack: Stack) -> None:
    ran = run("submit", "chat", "good day", "--lane", "normal", SLUICE_URL=stack.url)
    assert (ran.code, ran.err) == (0, "")
    [job_id] = ran.out.splitlines()
    shown = stack.run("get", job_id, "-o", "json")
    assert json.loads(shown.out)["payload"] == {"text": "good day"}
    as_json = stack.run("submit", "chat", "good day", "-o", "json")
    assert set(json.loads(as_json.out)) == {"job_id"}
    refused = stack.run("submit", "chat", "good day", "--lane", "high")
    assert refused.code == ExitCode.USAGE
    assert "lane" in refused.err


def test_submit_with_wait_and_stream(stack: Stack) -> None:
    ran = stack.run("submit", "chat", "--wait", "good day")
    assert ran.code == 0
    assert json.loads(ran.out) == {"text": "good day", "words": 2}
    assert len(ran.err.splitlines()) == 1  # the id
    ran = stack.run("submit", "--wait", "--text", "-q", "chat", "good day")
    assert (ran.code, ran.out, ran.err) == (0, "good day\n", "")
    ran = stack.run("submit", "chat", "good day", "--stream")
    assert (ran.code, ran.out) == (0, "good day \n")
    assert [line.split()[0] for line in ran.err.splitlines()[1:]] == ["queued", "running", "done"]


def test_payload_from_a_file_or_stdin(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"text": "from a file"}')
    ran = stack.run("submit", "chat", "-f", str(file), "--wait", "--text")
    assert ran.out == "from a file\n"
    ran = stack.run("submit", "chat", "-f", "-", "--wait", "--text", stdin=b"words\n")
    assert ran.out == "words\n"


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "chat"),
        ("submit", "chat", "{no json"),
        ("submit", "tool", "words"),
        ("submit", "chat", "hi", "-f", "-"),
        ("submit", "chat", "hi", "--ttl", "soon"),
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
def test_invalid_arguments_exit_2(stack: Stack, words: tuple[str, ...]) -> None:
    ran = stack.run(*words)
    assert ran.code == ExitCode.USAGE
    assert ran.out == ""
    assert ran.err


def test_missing_file_exits_74(stack: Stack) -> None:
    ran = stack.run("submit", "chat", "-f", "/no/such/file")
    assert ran.code == ExitCode.IO_ERROR
    assert "/no/such/file" in ran.err


def test_failed_job_exits_1_and_prints_the_error(stack: Stack) -> None:
    ran = stack.run("submit", "chat", "fail", "--wait")
    assert (ran.code, ran.out) == (ExitCode.FAILED, "")
    assert "failed: handler_error: no ?[31mspace" in ran.err
    job_id = stack.submit("fail")
    ran = stack.run("watch", job_id)
    assert (ran.code, ran.out) == (ExitCode.FAILED, "")
    assert "no ?[31mspace" in ran.err
    assert stack.run("result", job_id).code == ExitCode.FAILED
    assert stack.run("get", job_id).code == ExitCode.OK
    resumed = stack.run("watch", job_id, "--from", "9999999999999-0")
    assert resumed.code == ExitCode.FAILED


def test_timeouts_and_cancel_of_a_long_job(stack: Stack) -> None:
    job_id = stack.submit("forever")
    stack.wait_for(job_id, "running")
    ran = stack.run("watch", job_id, "--timeout", "500ms")
    assert ran.code == ExitCode.TIMEOUT
    assert ran.out == "well … \n"
    assert stack.run("result", job_id).code == ExitCode.TIMEOUT
    assert stack.run("result", job_id, "--wait", "--timeout", "0.2").code == ExitCode.TIMEOUT
    ran = stack.run("cancel", job_id, "--reason", "enough", "-o", "jsonl")
    assert json.loads(ran.out)["job_id"] == job_id
    ran = stack.run("watch", job_id)
    assert ran.code == ExitCode.CANCELED
    assert "reason=enough" in ran.err
    assert stack.run("result", job_id).code == ExitCode.CANCELED


def test_watch_several_jobs(stack: Stack) -> None:
    jobs = [stack.submit("one two"), stack.submit("fail"), stack.submit("three")]
    ran = stack.run("watch", *jobs)
    assert ran.code == ExitCode.FAILED
    lines = ran.out.splitlines()
    for job_id in jobs:
        assert any(line.startswith(job_id[:8]) for line in lines)
    ran = stack.run("watch", jobs[0], jobs[2], "-o", "jsonl")
    assert ran.code == ExitCode.OK
    events = [json.loads(line) for line in ran.out.splitlines()]
    assert {event["job_id"] for event in events} == {jobs[0], jobs[2]}
    assert sum(event["type"] == "done" for event in events) == 2


def test_events_prints_json_lines(stack: Stack) -> None:
    job_id = stack.submit("a b")
    ran = stack.run("events", job_id)
    events = [json.loads(line) for line in ran.out.splitlines()]
    types = [event["type"] for event in events]
    assert types == ["queued", "running", "message", "message", "done"]
    ran = stack.run("events", job_id, "--from", events[2]["id"], "--type", "done")
    assert [json.loads(line)["id"] for line in ran.out.splitlines()] == [events[-1]["id"]]
    assert len(stack.run("events", job_id, "-n", "2").out.splitlines()) == 2
    assert "worker.start" in stack.run("events", job_id, "-o", "table").out


def test_get_as_table_and_single_field(stack: Stack) -> None:
    job_id = stack.submit("a b")
    stack.wait_for(job_id, "done")
    shown = stack.run("get", job_id).out
    assert [line.split()[0] for line in shown.splitlines()][:3] == ["job", "task", "status"]
    assert '"words": 2' in shown
    assert stack.run("get", job_id, "--field", "result.words").out == "2\n"
    assert stack.run("get", job_id, "--field", "payload.text").out == "a b\n"
    missing = stack.run("get", job_id, "--field", "result.nothing")
    assert (missing.code, missing.out) == (ExitCode.NOT_FOUND, "")
    assert stack.run("result", job_id, "--text").out == "a b\n"


def test_retry_submits_the_same_payload(stack: Stack) -> None:
    old = stack.submit("again and again")
    [new] = stack.run("retry", old).out.split()
    assert new != old
    ran = stack.run("result", new, "--wait", "--text")
    assert ran.out == "again and again\n"
    ran = stack.run("retry", old, "--stream")
    assert (ran.code, ran.out) == (0, "again and again \n")


def test_trace_phases_add_up(stack: Stack) -> None:
    job_id = stack.submit("a b c")
    stack.wait_for(job_id, "done")
    hops = [json.loads(line) for line in stack.run("trace", job_id, "-o", "jsonl").out.splitlines()]
    assert [hop["name"] for hop in hops] == [
        "http → queue",
        "queue wait",
        "attempt 1 → first word",
        "words",
    ]
    assert hops[-1]["note"] == "3 pieces"
    for before, after in pairwise(hops):
        assert before["at_ms"] + before["took_ms"] == after["at_ms"]
    assert "queue wait" in stack.run("trace", job_id).out


def test_closed_pipe_is_not_an_error(stack: Stack) -> None:
    job_id = stack.submit("a b")
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m sluice events {job_id} | true; echo $PIPESTATUS"],
        env=environment(SLUICE_URL=stack.url), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")


def test_output_in_a_pipe_is_unchanged(stack: Stack) -> None:
    ran = stack.run("submit", "chat", "hostile", "--wait", "--text", "-q")
    assert ran.out == "a\x1b[2Jb\x07c\u202ed\n"


@pytest.mark.parametrize(
    "words",
    [
        ("get", UNKNOWN), ("watch", UNKNOWN), ("events", UNKNOWN), ("result", UNKNOWN),
        ("retry", UNKNOWN), ("trace", UNKNOWN), ("cancel", UNKNOWN), ("get", "../keys"),
        ("get", "."), ("get", ""), ("dlq", "show", "1-1"), ("image", "show", "x"),
        ("workflow", "show", "wf_20200101_001"), ("worker", "show", "unknown"),
        ("get", "a\nb"), ("watch", "ä"),
    ],
)  # fmt: skip
def test_unknown_objects_exit_66(stack: Stack, words: tuple[str, ...]) -> None:
    ran = stack.run(*words)
    assert ran.code == ExitCode.NOT_FOUND, ran
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(
    "words",
    [("ls",), ("submit", "chat", "hi"), ("top", "-n", "1"), ("queue", "ls"), ("bench",)],
)
def test_no_gateway_exits_5_with_advice(words: tuple[str, ...]) -> None:
    ran = run_here(*words, SLUICE_URL=unused_url())
    assert (ran.code, ran.out) == (ExitCode.UNREACHABLE, "")
    assert "sluice up" in ran.err


def test_invalid_url_exits_78() -> None:
    assert run_here("ls", "--url", "gateway:8080").code == ExitCode.MISCONFIGURED


@pytest.fixture(scope="module")
def limited_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A gateway that requires keys and accepts one job at a time."""
    server = RealServer(require_binary(BUNDLED))
    directory = tmp_path_factory.mktemp("limited_gateway")
    gateway = GatewayProcess(
        PYTHON_M, directory / "log", PORT="0", REDIS_URL=server.url, AUTH="required",
        BACKPRESSURE_MAX_BACKLOG="1",
    ).wait_until_listening()  # fmt: skip
    key = run_here("key", "create", "--name", "t", REDIS_URL=server.url).out.strip()
    yield f"http://127.0.0.1:{gateway.port}", key
    gateway.close()
    server.close()


def test_missing_invalid_and_limited_keys_exit_4(limited_gateway: tuple[str, str]) -> None:
    url, key = limited_gateway
    for words, more in (
        (("ls",), {}),
        (("ls",), {"SLUICE_API_KEY": "sluice_nonsense"}),
        (("dlq", "ls"), {"SLUICE_API_KEY": key}),
    ):
        ran = run_here(*words, SLUICE_URL=url, **more)
        assert ran.code == ExitCode.AUTH, ran


def test_full_queue_exits_7(
    limited_gateway: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, key = limited_gateway
    settings = {"SLUICE_URL": url, "SLUICE_API_KEY": key}
    assert run_here("submit", "chat", "one", **settings).code == 0
    monkeypatch.setattr("sluice.commands.jobs.submit.PERSISTENT_RETRIES", 0)
    ran = run_here("submit", "chat", "two", **settings)
    assert (ran.code, ran.out) == (ExitCode.BACKPRESSURE, "")


@pytest.mark.slow("restarts a gateway")
def test_watch_resumes_after_a_gateway_restart(redis_server: RealServer, tmp_path: Path) -> None:
    stack = Stack(redis_server, tmp_path)
    port = str(stack.gateway.port)
    second: GatewayProcess | None = None
    watching: subprocess.Popen[bytes] | None = None
    try:
        job_id = stack.submit("forever")
        out = tmp_path / "out"
        err = tmp_path / "err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            watching = subprocess.Popen(
                (*SLUICE, "watch", job_id),
                env=environment(SLUICE_URL=stack.url), stdout=stdout, stderr=stderr,
            )  # fmt: skip
        wait_until(lambda: "well" in out.read_text(), 60)
        stack.gateway.process.kill()
        stack.gateway.process.wait(20)
        wait_until(lambda: "reconnecting" in err.read_text(), 60)
        second = GatewayProcess(
            PYTHON_M, tmp_path / "second.log", PORT=port, REDIS_URL=redis_server.url
        ).wait_until_listening()
        assert stack.run("cancel", job_id).code == 0
        assert watching.wait(60) == 3
        # Every event once: the first word was not printed again.
        assert out.read_text().count("well") == 1
        assert err.read_text().count("running") == 1
    finally:
        if watching is not None:
            watching.kill()
            watching.wait(20)
        if second is not None:
            second.close()
        stack.close()
