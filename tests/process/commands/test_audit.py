"""`sluice audit` against a real gateway: output and exit codes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.client.scripted_gateway import (
    Reply,
    ScriptedGateway,
    answer,
    json_lines,
    problem,
)
from tests.support.processes.commands import CommandResult, Terminal
from tests.support.processes.gateway import StartGateway
from tests.support.servers import RealServer

pytestmark = pytest.mark.process
Command = Callable[..., CommandResult]
VIOLATIONS, UNAVAILABLE, BUSY, MISSING = 1, 5, 7, 66


def test_usage(command: Command) -> None:
    assert command("audit", "-o", "xml").code == 2
    shown = command("audit", "--help").out
    assert "SLUICE_URL" in shown
    assert "the check did not run" in " ".join(shown.split())


PROGRESS = {"type": "progress", "jobs_checked": 1}
REPORT = {"type": "report", "ts": 1, "jobs_checked": 2, "duration_ms": 3, "complete": False}


@pytest.mark.parametrize(
    ("reply", "code", "message"),
    [
        (
            json_lines(PROGRESS, {"type": "failed", "detail": "Redis is away"}),
            UNAVAILABLE,
            "is away",
        ),
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
    script.respond(json_lines(odd, {"type": "news"}, {**REPORT, "violations_total": 3}))
    ran = command("audit", "--url", script.url)
    assert ran.code == VIOLATIONS
    assert "\x1b" not in ran.out
    assert "\x07" not in ran.out
    head, row, more, summary = ran.out.splitlines()
    assert head
    assert "a?[31m?" in row
    assert more == "and 2 more"
    assert "too long" in summary


@pytest.mark.slow("waits for the progress of a real check")
def test_on_a_terminal_progress_is_one_changing_line(
    module_server: RealServer, start_gateway: StartGateway
) -> None:
    gateway, client = start_gateway(module_server.url), module_server.client
    job_id = gateway.submit()
    client.delete("jobs:stream")
    client.hset(f"job:{job_id}", "updated_ts", "1")  # it is checked again after a second
    terminal = Terminal("audit", "--url", gateway.url)
    try:
        assert terminal.end() == VIOLATIONS
    finally:
        terminal.close()
    progress, _, table = terminal.shown.partition("JOB")
    assert job_id in table
    assert "not_queued" in table
    assert "\n" not in progress
    if progress:  # on a slow machine the first second is over before the check begins
        assert "1 job checked" in progress
        assert progress.endswith("\r\x1b[K")
