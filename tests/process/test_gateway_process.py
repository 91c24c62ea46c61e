"""The gateway as a real process: start, many streams, curl, SIGTERM."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import eventually
from tests.gateway.conftest import CHAT
from tests.gateway.processes import (
    PYTHON_M,
    TIMEOUT_S,
    UVICORN,
    GatewayProcess,
    RawStream,
    environment,
    free_port,
)
from tests.support.backends import BUNDLED, RealServer, missing, require_binary

pytestmark = pytest.mark.process

#: Usually one second, but tests share the machine. A gateway that had to wait for a client logs it.
END_S = 20.0

#: Sends SIGTERM after the event loop was created and before anything runs on it.
SIGTERM_AT_START = """
import os, signal, uvicorn
from gateway.main import main

asked = uvicorn.Config.get_loop_factory

def terminated(config):
    os.kill(os.getpid(), {number})
    return asked(config)

uvicorn.Config.get_loop_factory = terminated
main()
"""

Start = Callable[..., GatewayProcess]


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    server = RealServer(require_binary(BUNDLED))
    yield server
    server.close()


@pytest.fixture
def start(server: RealServer, tmp_path: Path) -> Iterator[Start]:
    """Starts gateways and stops all of them at the end."""
    server.client.flushall()
    started: list[GatewayProcess] = []

    def factory(command: tuple[str, ...] = PYTHON_M, **settings: str) -> GatewayProcess:
        if command == UVICORN:
            command = (*command, "--port", str(free_port()))
        named = {"PORT": "0", "REDIS_URL": server.url, **settings}
        gateway = GatewayProcess(command, tmp_path / f"log-{len(started)}", **named)
        started.append(gateway)
        return gateway.wait_until_listening()

    yield factory
    for gateway in started:
        gateway.close()


def http_client(port: int) -> httpx.AsyncClient:
    """A client with a long timeout."""
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S)


async def post(port: int, **headers: str) -> str:
    async with http_client(port) as client:
        answer = await client.post("/v1/jobs", json=CHAT, headers=headers)
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["job_id"]
    return job_id


async def open_streams(port: int, job_id: str, count: int) -> list[RawStream]:
    target = f"/v1/jobs/{job_id}/events"
    streams = await asyncio.gather(*(RawStream.open(port, target) for _ in range(count)))
    for stream in streams:
        while (block := await stream.next()) is not None and block.event != "queued":
            pass
    return list(streams)


def complaints(log: str) -> list[str]:
    """Log lines above the usual level, except those about the test's Redis."""
    words = ("ERROR", "CRITICAL", "WARNING", "Traceback", "Exception", "without completing")
    lines = [line for line in log.splitlines() if "common.process.preflight" not in line]
    return [line for line in lines if any(word in line for word in words)]


@pytest.mark.parametrize("command", [PYTHON_M, UVICORN], ids=["python -m", "uvicorn"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_sigterm_ends_fifty_streams_with_a_last_event(
    start: Start, command: tuple[str, ...], number: signal.Signals
) -> None:
    gateway = start(command)
    streams = await open_streams(gateway.port, await post(gateway.port), 50)
    stopping = asyncio.get_running_loop().run_in_executor(None, gateway.stop, number)
    for stream in streams:
        last = (await stream.rest())[-1]
        assert (last.event, last.retry) == ("shutdown", "500")
        await stream.close()
    assert await stopping < END_S
    assert complaints(gateway.log) == []
    if command == PYTHON_M:
        assert gateway.process.returncode == 0
    else:  # the uvicorn CLI raises the signal again at its end
        assert gateway.process.returncode in (0, -number, 128 + number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_start_ends_it_without_output(
    server: RealServer, number: signal.Signals, tmp_path: Path
) -> None:
    ended = subprocess.run(
        (sys.executable, "-c", SIGTERM_AT_START.format(number=int(number))),
        cwd=tmp_path,
        env=environment(PORT="0", REDIS_URL=server.url),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    output = ended.stdout + ended.stderr
    assert (ended.returncode, complaints(output)) == (0, [])
    assert "Warning" not in output, output
    assert "Started" not in output, output


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
async def test_an_unread_stream_does_not_delay_the_stop(
    start: Start, server: RealServer, accept: str
) -> None:
    """Its socket buffer is full, so the last event cannot be sent."""
    gateway = start()
    job_id = await post(gateway.port)
    big: Any = {"type": "message", "ts": "1", "step": "s", "data": json.dumps("x" * 1_000_000)}
    for _ in range(16):
        server.client.xadd(f"job:{job_id}:events", big)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    target = f"GET /v1/jobs/{job_id}/events HTTP/1.1"
    writer.write(f"{target}\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())
    await reader.readuntil(b"xxxx")  # the first of them arrives; the rest is left unread
    [other] = await open_streams(gateway.port, await post(gateway.port), 1)
    took_s = await asyncio.get_running_loop().run_in_executor(None, gateway.stop)
    assert (await other.rest())[-1].event == "shutdown"
    assert took_s < END_S  # at other times a response waits 30 s for its reader
    writer.close()
    await other.close()


async def test_two_hundred_streams_need_few_connections(start: Start, server: RealServer) -> None:
    gateway = start()
    before = 1  # the test's own connection
    jobs = [await post(gateway.port) for _ in range(20)]
    opened = [await open_streams(gateway.port, job_id, 10) for job_id in jobs]
    listed = server.client.client_list()
    assert len(listed) - before <= 8
    for job_id in jobs:
        fields: Any = {"type": "done", "ts": "1", "step": "s", "data": "{}"}
        server.client.hset(f"job:{job_id}", "status", "done")
        server.client.xadd(f"job:{job_id}:events", fields)
    for streams in opened:
        for stream in streams:
            assert [block.event for block in await stream.rest()] == ["done"]
            await stream.close()
    assert len(server.client.client_list()) - before <= 8
    assert complaints(gateway.log) == []


async def test_disconnected_clients_release_their_streams(start: Start, server: RealServer) -> None:
    """With a limit of ten streams, three hundred are opened and closed."""
    gateway = start(SSE_MAX_CLIENTS="10")
    job_id = await post(gateway.port)
    async with http_client(gateway.port) as client:

        async def streams_available() -> bool:
            async with client.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
                return answer.status_code == 200

        for _ in range(30):
            for stream in await open_streams(gateway.port, job_id, 10):
                await stream.close()
            await eventually(streams_available)
    assert complaints(gateway.log) == []


async def test_resume_over_a_restart(start: Start, server: RealServer) -> None:
    first = start()
    job_id = await post(first.port)
    [stream] = await open_streams(first.port, job_id, 1)
    await stream.close()
    last_id = server.client.xrange(f"job:{job_id}:events")[-1][0].decode()
    await asyncio.get_running_loop().run_in_executor(None, first.stop)
    fields: Any = {"type": "done", "ts": "1", "step": "s", "data": "{}"}
    server.client.hset(f"job:{job_id}", "status", "done")
    server.client.xadd(f"job:{job_id}:events", fields)
    second = start()
    target = f"/v1/jobs/{job_id}/events?last_event_id={last_id}"
    resumed = await RawStream.open(second.port, target)
    assert [block.event for block in await resumed.rest()] == ["hello", "done"]
    await resumed.close()


async def test_a_waiting_request_is_answered_on_sigterm(start: Start) -> None:
    gateway = start()
    posting = asyncio.create_task(post(gateway.port, prefer="wait=60"))
    await eventually(lambda: _queued(gateway.port, posting))
    took_s = await asyncio.get_running_loop().run_in_executor(None, gateway.stop)
    assert await posting
    assert took_s < END_S
    assert complaints(gateway.log) == []


async def _queued(port: int, posting: asyncio.Task[str]) -> bool:
    assert not posting.done()
    async with http_client(port) as client:
        return (await client.get("/readyz")).status_code == 200


def curl(*args: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("curl") is None:
        missing("curl is not installed")
    return subprocess.run(
        ("curl", "-sS", "--max-time", "15", *args),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_curl_submits_and_tails(start: Start, server: RealServer) -> None:
    gateway = start()
    jobs = f"http://127.0.0.1:{gateway.port}/v1/jobs"
    body = '{"task":"chat","payload":{"text":"hello"}}'
    answer = curl(jobs, "-H", "Content-Type: application/json", "-d", body)
    job_id = json.loads(answer.stdout)["job_id"]
    fields: Any = {"type": "done", "ts": "1", "step": "s", "data": "{}"}
    server.client.hset(f"job:{job_id}", "status", "done")
    server.client.xadd(f"job:{job_id}:events", fields)
    tail = curl("-N", f"{jobs}/{job_id}/events")
    assert tail.returncode == 0, tail.stderr
    kinds = [line[7:] for line in tail.stdout.splitlines() if line.startswith("event: ")]
    assert kinds == ["hello", "queued", "done"]


@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
async def test_a_client_that_reads_after_sending_gets_its_413(start: Start, chunked: bool) -> None:
    """Like most HTTP libraries: closing at once would reset the connection, and the 413 would be
    lost.
    """
    gateway = start()
    body = b'{"task":"chat","payload":{"t":"' + b"x" * 7_000_000 + b'"}}'

    def send() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=TIMEOUT_S)
        try:
            headers = {"Content-Type": "application/json"}
            content = iter([body]) if chunked else body
            connection.request("POST", "/v1/jobs", content, headers, encode_chunked=chunked)
            return connection.getresponse().status
        finally:
            connection.close()

    assert await asyncio.get_running_loop().run_in_executor(None, send) == 413
    assert complaints(gateway.log) == []
