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
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.processes import PYTHON_M, GatewayProcess, environment, free_port
from tests.support.backends import BUNDLED, RealServer, require_binary
from tests.worker.processes import wait_until

pytestmark = pytest.mark.process

COMMAND = (sys.executable, "-m", "sluice", "audit")
CLEAN, VIOLATIONS, UNAVAILABLE, BUSY, MISSING, MISCONFIGURED = 0, 1, 5, 7, 66, 78


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RealServer]:
    server = RealServer(require_binary(BUNDLED))
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateway(
    redis_server: RealServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    log = tmp_path_factory.mktemp("gateway") / "log"
    gateway = GatewayProcess(PYTHON_M, log, PORT="0", REDIS_URL=redis_server.url)
    yield gateway.wait_until_listening()
    gateway.close()


@pytest.fixture(autouse=True)
def _empty(redis_server: RealServer) -> None:
    redis_server.client.flushall()


def url_of(gateway: GatewayProcess) -> str:
    return f"http://127.0.0.1:{gateway.port}"


def run(*args: str, **settings: str) -> subprocess.CompletedProcess[str]:
    finished = subprocess.run(
        (*COMMAND, *args), env=environment(**settings), capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in finished.stderr, finished.stderr
    return finished


def post(gateway: GatewayProcess) -> str:
    request = urllib.request.Request(
        f"{url_of(gateway)}/v1/jobs",
        data=b'{"task":"chat","payload":{"text":"hello"}}',
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        job_id: str = json.load(answer)["job_id"]
    return job_id


def lose(server: RealServer, job_id: str) -> None:
    """Removes the message of a job that is old enough to be checked."""
    client: Any = server.client
    client.delete("jobs:stream")
    client.hset(f"job:{job_id}", "updated_ts", "1")


def test_no_violations(gateway: GatewayProcess) -> None:
    for _ in range(3):
        post(gateway)
    finished = run("--url", url_of(gateway))
    assert finished.returncode == CLEAN, finished
    [line] = finished.stdout.splitlines()
    assert line.startswith("3 jobs checked in ")
    assert line.endswith("s: no violation")
    # Progress is printed only after a second or more.
    assert all(line.endswith("jobs checked") for line in finished.stderr.splitlines())


def test_the_gateway_is_found_by_the_environment(gateway: GatewayProcess) -> None:
    finished = run(PORT=str(gateway.port))
    assert finished.returncode == 0, finished.stderr


def test_a_lost_job_is_named(gateway: GatewayProcess, redis_server: RealServer) -> None:
    job_id = post(gateway)
    lose(redis_server, job_id)
    finished = run(SLUICE_URL=f"{url_of(gateway)}/")
    assert finished.returncode == VIOLATIONS, finished
    head, row, summary = finished.stdout.splitlines()
    assert head.split() == ["JOB", "RULE", "DETAIL"]
    assert row.split()[:2] == [job_id, "not_queued"]
    assert summary.startswith("1 job checked in ")
    assert summary.endswith("s: 1 violation")


def test_as_json(gateway: GatewayProcess, redis_server: RealServer) -> None:
    job_id = post(gateway)
    finished = run("-o", "json", SLUICE_URL=url_of(gateway))
    assert finished.returncode == CLEAN, finished
    report = json.loads(finished.stdout)
    assert (report["jobs_checked"], report["violations_total"]) == (1, 0)
    assert report["violations"] == []
    lose(redis_server, job_id)
    finished = run("-o", "json", "--url", url_of(gateway))
    assert finished.returncode == VIOLATIONS
    report = json.loads(finished.stdout)
    [found] = report["violations"]
    assert set(found) == {"job_id", "rule", "detail"}
    assert (found["job_id"], found["rule"]) == (job_id, "not_queued")
    with urllib.request.urlopen(f"{url_of(gateway)}/v1/audit", timeout=20) as answer:
        assert json.load(answer)["totals"] == {"jobs_checked": 2, "violations": 1}


def test_proxies_of_the_environment_are_ignored(gateway: GatewayProcess) -> None:
    proxy = f"http://127.0.0.1:{free_port()}"
    finished = run("--url", url_of(gateway), http_proxy=proxy, HTTP_PROXY=proxy)
    assert finished.returncode == CLEAN, finished


def test_an_unreachable_gateway() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    finished = run(SLUICE_URL=url)
    assert finished.returncode == UNAVAILABLE
    assert finished.stdout == ""
    [line] = finished.stderr.splitlines()
    assert line.startswith("sluice: ")
    assert url in line
    assert "sluice up" in line
    assert "--url" in line


@pytest.mark.parametrize("url", ["gateway:8080", "ftp://x", "http://", "http://x:port", "http://["])
def test_an_invalid_url(url: str) -> None:
    finished = run("--url", url)
    assert finished.returncode == MISCONFIGURED, finished
    [line] = finished.stderr.splitlines()
    assert repr(url) in line
    assert "SLUICE_URL" in line


def test_usage() -> None:
    assert run("-o", "xml").returncode == 2
    shown = run("--help").stdout
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
    for impostor in started:
        impostor.close()


PROGRESS = {"type": "progress", "jobs_checked": 1}
REPORT = {"type": "report", "ts": 1, "jobs_checked": 2, "duration_ms": 3, "complete": True}


def test_a_failed_or_interrupted_check(fake_server: StartFakeServer) -> None:
    failed = run("--url", fake_server(PROGRESS, {"type": "failed", "detail": "Redis is away"}))
    assert failed.returncode == UNAVAILABLE
    assert failed.stderr == "sluice: the audit failed: Redis is away\n"
    for raw in (
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<html>hi\n",
    ):
        for output in ("table", "json"):
            broken = run("--url", fake_server(raw=raw), "-o", output)
            assert broken.returncode == UNAVAILABLE, (raw, broken)
            assert len(broken.stderr.splitlines()) == 1
            assert broken.stdout == ""


def test_a_refusal_is_shown(fake_server: StartFakeServer) -> None:
    refused = run(
        "--url", fake_server({"detail": "one is running"}, status="429 Too Many Requests")
    )
    assert refused.returncode == BUSY
    assert "429 one is running" in refused.stderr
    elsewhere = run("--url", fake_server(status="404 Not Found"))
    assert elsewhere.returncode == MISSING
    assert "404 Not Found" in elsewhere.stderr


def test_hostile_text_does_not_reach_the_terminal(fake_server: StartFakeServer) -> None:
    odd = {"type": "violation", "job_id": "a\x1b[31m\n", "rule": "r", "detail": "\x07é"}
    url = fake_server(odd, {"type": "news"}, {**REPORT, "violations_total": 3, "complete": False})
    finished = run("--url", url)
    assert finished.returncode == VIOLATIONS
    assert "\x1b" not in finished.stdout
    assert "\x07" not in finished.stdout
    head, row, more, summary = finished.stdout.splitlines()
    assert head
    assert "a?[31m?" in row
    assert more == "and 2 more"
    assert "too long" in summary


def test_a_closed_pipe_ends_the_command(gateway: GatewayProcess, redis_server: RealServer) -> None:
    lose(redis_server, post(gateway))
    line = f"{sys.executable} -m sluice audit --url {url_of(gateway)} | true"
    finished = subprocess.run(
        ["sh", "-c", line], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert "Error" not in finished.stderr


def test_only_one_check_at_a_time_and_ctrl_c_ends_it(
    gateway: GatewayProcess, redis_server: RealServer
) -> None:
    client: Any = redis_server.client
    pipe = client.pipeline(transaction=False)
    for number in range(20_000):
        pipe.hset(f"job:many-{number}", "x", "y")
    pipe.execute()
    first = subprocess.Popen(
        (*COMMAND, "--url", url_of(gateway)),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert first.stderr is not None
        assert first.stderr.readline().endswith(" jobs checked\n")
        second = run("--url", url_of(gateway))
        assert second.returncode == BUSY
        assert "429" in second.stderr
        first.send_signal(signal.SIGINT)
        _, errors = first.communicate(timeout=20)
        assert first.returncode == 130
        assert "Traceback" not in errors
    finally:
        first.kill()
        first.wait(20)
    client.flushall()
    wait_until(lambda: run("--url", url_of(gateway)).returncode == CLEAN, 30)


def test_on_a_terminal_progress_is_one_changing_line(
    gateway: GatewayProcess, redis_server: RealServer, tmp_path: Path
) -> None:
    lose(redis_server, post(gateway))  # it is checked again after a second
    terminal, process_end = pty.openpty()
    with (tmp_path / "out").open("w+") as output:
        process = subprocess.Popen(
            (*COMMAND, "--url", url_of(gateway)),
            env=environment(),
            stdout=output,
            stderr=process_end,
        )
        os.close(process_end)
        progress = b""
        try:
            while piece := os.read(terminal, 1024):
                progress += piece
        except OSError:  # EIO: the other end is closed
            pass
        finally:
            os.close(terminal)
        assert process.wait(20) == VIOLATIONS
        output.seek(0)
        assert "not_queued" in output.read()
    assert b"\n" not in progress
    if progress:  # on a slow machine the first second is over before the check begins
        assert b"1 job checked" in progress
        assert progress.endswith(b"\r\x1b[K")
