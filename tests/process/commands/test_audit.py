"""`sluice audit` against a real gateway: output and exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.client.scripted_gateway import Reply, ScriptedGateway, answer, problem
from tests.support.processes import commands
from tests.support.processes.commands import SLUICE, CommandResult, Terminal
from tests.support.processes.gateway import GatewayProcess, environment, gateway_starter
from tests.support.processes.worker import wait_until
from tests.support.servers import RealServer

pytestmark = pytest.mark.process
SLOW = pytest.mark.slow("starts a gateway")
Command = Callable[..., CommandResult]
CLEAN, VIOLATIONS, UNAVAILABLE, BUSY, MISSING = 0, 1, 5, 7, 66


@pytest.fixture(scope="module")
def module_gateway(
    module_server: RealServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    for start_gateway in gateway_starter(tmp_path_factory.mktemp("gateway")):
        yield start_gateway(module_server.url)


@pytest.fixture
def gateway(module_gateway: GatewayProcess, module_server: RealServer) -> GatewayProcess:
    """A gateway without jobs."""
    module_server.client.flushall()
    return module_gateway


def lose(server: RealServer, job_id: str) -> None:
    """Removes the message of a job that is old enough to be checked."""
    server.client.delete("jobs:stream")
    server.client.hset(f"job:{job_id}", "updated_ts", "1")


@SLOW
def test_a_lost_job_is_named(
    gateway: GatewayProcess, module_server: RealServer, command: Command
) -> None:
    job_id = gateway.submit()
    ran = command("audit", "-o", "json", PORT=str(gateway.port))  # finds it by the environment
    assert ran.code == CLEAN, ran
    report = json.loads(ran.out)
    assert (report["jobs_checked"], report["violations_total"]) == (1, 0)
    assert report["violations"] == []
    lose(module_server, job_id)
    ran = command("audit", SLUICE_URL=f"{gateway.url}/")
    assert ran.code == VIOLATIONS, ran
    head, row, summary = ran.out.splitlines()
    assert head.split() == ["JOB", "RULE", "DETAIL"]
    assert row.split()[:2] == [job_id, "not_queued"]
    assert summary.startswith("1 job checked in ")
    assert summary.endswith("s: 1 violation")
    ran = command("audit", "-o", "json", "--url", gateway.url)
    assert ran.code == VIOLATIONS
    [found] = json.loads(ran.out)["violations"]
    assert set(found) == {"job_id", "rule", "detail"}
    assert (found["job_id"], found["rule"]) == (job_id, "not_queued")
    totals = gateway.http.get("/v1/audit").json()["totals"]
    assert totals == {"jobs_checked": 3, "violations": 2}


def test_usage(command: Command) -> None:
    assert command("audit", "-o", "xml").code == 2
    shown = command("audit", "--help").out
    assert "SLUICE_URL" in shown
    assert "the check did not run" in " ".join(shown.split())


def lines(*objects: object) -> Reply:
    body = b"".join(json.dumps(each).encode() + b"\n" for each in objects)
    return Reply(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)


PROGRESS = {"type": "progress", "jobs_checked": 1}
REPORT = {"type": "report", "ts": 1, "jobs_checked": 2, "duration_ms": 3, "complete": False}


@pytest.mark.parametrize(
    ("reply", "code", "message"),
    [
        (lines(PROGRESS, {"type": "failed", "detail": "Redis is away"}), UNAVAILABLE, "is away"),
        (problem(429, "busy", "one is running"), BUSY, "429 one is running"),
        (answer(404), MISSING, "404"),
        (Reply(), UNAVAILABLE, ""),
        (Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n<html>"), UNAVAILABLE, ""),
    ],
)
@pytest.mark.parametrize("output", ["table", "json"])
def test_a_failed_check_prints_one_line(
    command: Command, script: ScriptedGateway, reply: Reply, code: int, message: str, output: str
) -> None:
    script.respond(reply)
    ran = command("audit", "--url", script.url, "-o", output)
    assert (ran.code, ran.out) == (code, "")
    [line] = ran.err.splitlines()
    assert line.startswith("sluice: ")
    assert message in line


def test_hostile_text_does_not_reach_the_terminal(
    command: Command, script: ScriptedGateway
) -> None:
    odd = {"type": "violation", "job_id": "a\x1b[31m\n", "rule": "r", "detail": "\x07é"}
    script.respond(lines(odd, {"type": "news"}, {**REPORT, "violations_total": 3}))
    ran = command("audit", "--url", script.url)
    assert ran.code == VIOLATIONS
    assert "\x1b" not in ran.out
    assert "\x07" not in ran.out
    head, row, more, summary = ran.out.splitlines()
    assert head
    assert "a?[31m?" in row
    assert more == "and 2 more"
    assert "too long" in summary


@pytest.mark.slow("checks many jobs")
def test_only_one_check_at_a_time_and_ctrl_c_ends_it(
    gateway: GatewayProcess, module_server: RealServer
) -> None:
    client: Any = module_server.client
    pipe = client.pipeline(transaction=False)
    for number in range(20_000):
        pipe.hset(f"job:many-{number}", "x", "y")
    pipe.execute()
    first = subprocess.Popen(
        (*SLUICE, "audit", "--url", gateway.url),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert first.stderr is not None
        assert first.stderr.readline().endswith(" jobs checked\n")
        second = commands.run("audit", "--url", gateway.url)
        assert second.code == BUSY
        assert "429" in second.err
        first.send_signal(signal.SIGINT)
        _, errors = first.communicate(timeout=20)
        assert first.returncode == 130
        assert "Traceback" not in errors
    finally:
        first.kill()
        first.wait(20)
    client.flushall()
    wait_until(lambda: commands.run("audit", "--url", gateway.url).code == CLEAN, 30)


@SLOW
def test_on_a_terminal_progress_is_one_changing_line(
    gateway: GatewayProcess, module_server: RealServer
) -> None:
    lose(module_server, gateway.submit())  # it is checked again after a second
    terminal = Terminal("audit", "--url", gateway.url)
    try:
        assert terminal.end() == VIOLATIONS
    finally:
        terminal.close()
    progress, _, table = terminal.shown.partition("JOB")
    assert "not_queued" in table
    assert "\n" not in progress
    if progress:  # on a slow machine the first second is over before the check begins
        assert "1 job checked" in progress
        assert progress.endswith("\r\x1b[K")
