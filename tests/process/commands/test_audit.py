"""`sluice audit` against a real gateway: output and exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import commands
from tests.support.processes.commands import SLUICE, CommandResult, unused_url
from tests.support.processes.gateway import GatewayProcess, environment, gateway_starter
from tests.support.processes.worker import wait_until
from tests.support.servers import RealServer

pytestmark = pytest.mark.process
Command = Callable[..., CommandResult]
CLEAN, VIOLATIONS, UNAVAILABLE, BUSY, MISSING, MISCONFIGURED = 0, 1, 5, 7, 66, 78


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


def test_no_violations(gateway: GatewayProcess) -> None:
    """In a process: the gateway is found by the environment, and proxies are ignored."""
    for _ in range(3):
        gateway.submit()
    proxy = {name: unused_url() for name in ("http_proxy", "HTTP_PROXY")}
    ran = commands.run("audit", PORT=str(gateway.port), **proxy)
    assert ran.code == CLEAN, ran
    [line] = ran.out.splitlines()
    assert line.startswith("3 jobs checked in ")
    assert line.endswith("s: no violation")
    # Progress is printed only after a second or more.
    assert all(line.endswith("jobs checked") for line in ran.err.splitlines())


def test_a_lost_job_is_named(
    gateway: GatewayProcess, module_server: RealServer, command: Command
) -> None:
    job_id = gateway.submit()
    ran = command("audit", "-o", "json", SLUICE_URL=gateway.url)
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


def test_an_unreachable_gateway(command: Command) -> None:
    url = unused_url()
    ran = command("audit", SLUICE_URL=url)
    assert (ran.code, ran.out) == (UNAVAILABLE, "")
    [line] = ran.err.splitlines()
    assert line.startswith("sluice: ")
    assert all(words in line for words in (url, "sluice up", "--url"))


@pytest.mark.parametrize("url", ["gateway:8080", "ftp://x", "http://", "http://x:port", "http://["])
def test_an_invalid_url(command: Command, url: str) -> None:
    ran = command("audit", "--url", url)
    assert ran.code == MISCONFIGURED, ran
    [line] = ran.err.splitlines()
    assert repr(url) in line
    assert "SLUICE_URL" in line


def test_usage(command: Command) -> None:
    assert command("audit", "-o", "xml").code == 2
    shown = command("audit", "--help").out
    assert "SLUICE_URL" in shown
    assert "the check did not run" in " ".join(shown.split())


class FakeServer:
    """A server that answers every connection with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._answer = answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(self._answer)

    def close(self) -> None:
        self._socket.close()


StartFakeServer = Callable[..., str]


@pytest.fixture
def fake_server() -> Iterator[StartFakeServer]:
    """Starts fake servers that respond with these lines or bytes."""
    started: list[FakeServer] = []

    def start(*lines: object, status: str = "200 OK", raw: bytes | None = None) -> str:
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        started.append(FakeServer(raw if raw is not None else head.encode() + body))
        return started[-1].url

    yield start
    for server in started:
        server.close()


PROGRESS = {"type": "progress", "jobs_checked": 1}
REPORT = {"type": "report", "ts": 1, "jobs_checked": 2, "duration_ms": 3, "complete": True}


def test_a_failed_check(command: Command, fake_server: StartFakeServer) -> None:
    failure = {"type": "failed", "detail": "Redis is away"}
    failed = command("audit", "--url", fake_server(PROGRESS, failure))
    assert failed.code == UNAVAILABLE
    assert failed.err == "sluice: the audit failed: Redis is away\n"
    busy = {"detail": "one is running"}
    refused = command("audit", "--url", fake_server(busy, status="429 Too Many Requests"))
    assert refused.code == BUSY
    assert "429 one is running" in refused.err
    elsewhere = command("audit", "--url", fake_server(status="404 Not Found"))
    assert elsewhere.code == MISSING
    assert "404 Not Found" in elsewhere.err


@pytest.mark.parametrize("output", ["table", "json"])
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<html>hi\n",
    ],
)
def test_an_interrupted_check(
    command: Command, fake_server: StartFakeServer, raw: bytes, output: str
) -> None:
    broken = command("audit", "--url", fake_server(raw=raw), "-o", output)
    assert broken.code == UNAVAILABLE, broken
    assert len(broken.err.splitlines()) == 1
    assert broken.out == ""


def test_hostile_text_does_not_reach_the_terminal(
    command: Command, fake_server: StartFakeServer
) -> None:
    odd = {"type": "violation", "job_id": "a\x1b[31m\n", "rule": "r", "detail": "\x07é"}
    url = fake_server(odd, {"type": "news"}, {**REPORT, "violations_total": 3, "complete": False})
    ran = command("audit", "--url", url)
    assert ran.code == VIOLATIONS
    assert "\x1b" not in ran.out
    assert "\x07" not in ran.out
    head, row, more, summary = ran.out.splitlines()
    assert head
    assert "a?[31m?" in row
    assert more == "and 2 more"
    assert "too long" in summary


@pytest.mark.slow("starts another command")
def test_a_closed_pipe_ends_the_command(gateway: GatewayProcess, module_server: RealServer) -> None:
    lose(module_server, gateway.submit())
    line = f"{sys.executable} -m sluice audit --url {gateway.url} | true"
    finished = subprocess.run(
        ["sh", "-c", line], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert "Error" not in finished.stderr


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


@pytest.mark.slow("starts another command")
def test_on_a_terminal_progress_is_one_changing_line(
    gateway: GatewayProcess, module_server: RealServer, tmp_path: Path
) -> None:
    lose(module_server, gateway.submit())  # it is checked again after a second
    terminal, process_end = pty.openpty()
    with (tmp_path / "out").open("w+") as output:
        process = subprocess.Popen(
            (*SLUICE, "audit", "--url", gateway.url),
            env=environment(),
            stdout=output,
            stderr=process_end,
        )
        os.close(process_end)
        progress = commands.read_all(terminal)
        assert process.wait(20) == VIOLATIONS
        output.seek(0)
        assert "not_queued" in output.read()
    assert b"\n" not in progress
    if progress:  # on a slow machine the first second is over before the check begins
        assert b"1 job checked" in progress
        assert progress.endswith(b"\r\x1b[K")
