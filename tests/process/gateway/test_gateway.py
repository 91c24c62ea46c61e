"""The gateway as a real process: start, invalid settings, many streams, curl, signals."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice.common.errors import EXIT_CONFIG
from tests.support.processes.gateway import (
    PYTHON_M,
    TIMEOUT_S,
    UVICORN,
    GatewayProcess,
    RawStream,
    StartGateway,
    complaints,
    environment,
)
from tests.support.servers import RealServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

#: Usually one second, but tests share the machine. A gateway that had to wait for a client logs it.
END_S = 20.0
SLOW = pytest.mark.slow("starts another gateway")
DONE: Any = {"type": "done", "ts": "1", "step": "s", "data": "{}"}

#: Sends a signal after the event loop was created and before anything runs on it.
SIGNAL_AT_START = """
import os, signal, uvicorn
from sluice.gateway.main import main

asked = uvicorn.Config.get_loop_factory

def terminated(config):
    os.kill(os.getpid(), {number})
    return asked(config)

uvicorn.Config.get_loop_factory = terminated
main()
"""


async def open_streams(gateway: GatewayProcess, job_id: str, count: int) -> list[RawStream]:
    target = f"/v1/jobs/{job_id}/events"
    streams = await asyncio.gather(*(RawStream.open(gateway.port, target) for _ in range(count)))
    return [await stream.wait_for("queued") for stream in streams]


async def stop(gateway: GatewayProcess, number: signal.Signals = signal.SIGTERM) -> float:
    return await asyncio.get_running_loop().run_in_executor(None, gateway.stop, number)


def finish(server: RealServer, job_id: str) -> None:
    server.client.hset(f"job:{job_id}", "status", "done")
    server.client.xadd(f"job:{job_id}:events", DONE)


# -- signals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "number"),
    [
        pytest.param(PYTHON_M, signal.SIGTERM, id="python -m, SIGTERM"),
        pytest.param(PYTHON_M, signal.SIGINT, id="python -m, SIGINT", marks=SLOW),
        pytest.param(UVICORN, signal.SIGTERM, id="uvicorn, SIGTERM", marks=SLOW),
    ],
)
async def test_a_signal_ends_fifty_streams_with_a_last_event(
    start_gateway: StartGateway,
    one_server: RealServer,
    command: tuple[str, ...],
    number: signal.Signals,
) -> None:
    gateway = start_gateway(one_server.url, command)
    streams = await open_streams(gateway, gateway.submit(), 50)
    stopping = asyncio.create_task(stop(gateway, number))
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


@SLOW
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_start_ends_it_without_output(
    one_server: RealServer, number: signal.Signals, tmp_path: Path
) -> None:
    code, output = run_to_end(
        (sys.executable, "-c", SIGNAL_AT_START.format(number=int(number))),
        tmp_path,
        PORT="0",
        REDIS_URL=one_server.url,
    )
    assert (code, complaints(output)) == (0, [])
    assert "Warning" not in output, output
    assert "Started" not in output, output


# -- clients -----------------------------------------------------------------------------------


@pytest.mark.slow("opens hundreds of streams")
async def test_many_streams_need_few_connections(
    start_gateway: StartGateway, module_server: RealServer
) -> None:
    """With a limit of 200 streams, which are opened, ended or abandoned, and opened again."""
    client: Any = module_server.client
    gateway = start_gateway(module_server.url, SSE_MAX_CLIENTS="200")
    jobs = [gateway.submit() for _ in range(20)]
    opened = [await open_streams(gateway, job_id, 10) for job_id in jobs]
    assert len(client.client_list()) - 1 <= 8  # without the test's own
    for job_id in jobs:
        finish(module_server, job_id)
    for streams in opened:
        for stream in streams:
            assert [block.event for block in await stream.rest()] == ["done"]
            await stream.close()
    assert len(client.client_list()) - 1 <= 8
    job_id = gateway.submit()
    async with gateway.http_async() as http_client:

        async def streams_available() -> bool:
            async with http_client.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
                return answer.status_code == 200

        for _ in range(3):
            for stream in await open_streams(gateway, job_id, 200):
                await stream.close()
            await eventually(streams_available)
    assert complaints(gateway.log) == []


# -- starts that fail: one clear line, the right exit code, no traceback --------------------------


def run_to_end(command: tuple[str, ...], where: Path, **settings: str) -> tuple[int, str]:
    """Runs a process that exits by itself; returns its exit code and output."""
    finished = subprocess.run(
        command,
        cwd=where,
        env=environment(**settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    return finished.returncode, finished.stdout


def test_every_bad_setting_is_named_on_one_line(tmp_path: Path) -> None:
    url = "rediz://user:hunter2@localhost"
    code, output = run_to_end(PYTHON_M, tmp_path, PORT="x", JOB_TTL_S="y", REDIS_URL=url)
    assert code == EXIT_CONFIG, output
    [line] = output.splitlines()
    assert line.startswith("sluice: ")
    assert all(name in line for name in ("PORT='x'", "JOB_TTL_S='y'", "REDIS_URL"))
    assert "hunter2" not in line
    assert os.listdir(tmp_path) == []


WRONG = {"BACKPRESSURE_MAX_BACKLOG": "abc"}
OPEN = {"AUTH": "off", "HOST": "0.0.0.0"}


@SLOW
@pytest.mark.parametrize(
    ("command", "settings", "named"),
    [
        (UVICORN, WRONG, ["BACKPRESSURE_MAX_BACKLOG"]),
        (PYTHON_M, OPEN, ["sluice: ", "AUTH=off", "HOST=0.0.0.0"]),
        (UVICORN, OPEN, ["AUTH=off", "HOST=0.0.0.0"]),
    ],
)
def test_a_start_with_wrong_settings_fails(
    tmp_path: Path, command: tuple[str, ...], settings: dict[str, str], named: list[str]
) -> None:
    usual = {"PORT": "0", "REDIS_URL": f"unix://{tmp_path}/none"}
    code, output = run_to_end(command, tmp_path, **{**usual, **settings})
    assert all(word in output.splitlines()[-1] for word in named), output
    if command == PYTHON_M:
        assert code == EXIT_CONFIG
        assert "Traceback" not in output
    else:
        assert code != 0


@SLOW
@pytest.mark.parametrize(
    ("command", "host", "reason"),
    [
        (PYTHON_M, "127.0.0.1", "address already in use"),
        (UVICORN, "127.0.0.1", "address already in use"),
        (PYTHON_M, "192.0.2.1", "cannot assign requested address"),  # of another host
    ],
)
def test_an_address_that_cannot_be_used(
    tmp_path: Path, command: tuple[str, ...], host: str, reason: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        if command == UVICORN:
            command = (*command, "--port", port)
        settings = {"HOST": host, "PORT": port, "REDIS_URL": f"unix://{tmp_path}/none"}
        code, output = run_to_end(command, tmp_path, **settings)
    assert code != 0
    assert reason in output.lower()
    assert host in output
    assert port in output
    assert "Traceback" not in output
