"""Real gateway processes for tests, and raw clients for them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from tests.support import ports
from tests.support.gateway.sse import Block, Parser

ROOT = Path(__file__).parents[3]
PYTHON_M = (sys.executable, "-m", "gateway")
UVICORN = (sys.executable, "-m", "uvicorn", "gateway.main:app")
_LISTENING = re.compile(r"http://127\.0\.0\.1:(\d+)")
#: On a busy machine a process takes its time to start.
TIMEOUT_S = 60.0


def free_port() -> int:
    """For servers that cannot report their port, and clients that need an unused one."""
    return ports.pick()


def environment(**settings: str) -> dict[str, str]:
    """This process's environment without settings of Sluice, plus the given ones."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), **settings}


class GatewayProcess:
    """A gateway on a free port, its log in a file."""

    def __init__(self, command: tuple[str, ...], log: Path, **settings: str) -> None:
        self.log_path = log
        self._log = log.open("wb")
        self.process = subprocess.Popen(
            command,
            cwd=log.parent,
            env=environment(**settings),
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.port = 0

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @cached_property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=TIMEOUT_S, trust_env=False)

    def http_async(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT_S, trust_env=False)

    def submit(self, task: str = "chat", payload: Any = None, **more: Any) -> str:
        body = {"task": task, "payload": payload or {"text": "hello"}, **more}
        answer = self.http.post("/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job_id"])

    def wait_until_listening(self) -> GatewayProcess:
        self._wait(lambda: _LISTENING.search(self.log))
        match = _LISTENING.search(self.log)
        assert match is not None
        self.port = int(match[1])
        return self

    def _wait(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert self.process.poll() is None, f"it ended: {self.log}"
            assert time.monotonic() < deadline, f"it does not listen: {self.log}"
            time.sleep(0.02)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Send a signal; returns the seconds until the process was gone."""
        started = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(TIMEOUT_S)
        return time.monotonic() - started

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(TIMEOUT_S)
        if "http" in vars(self):
            self.http.close()
        self._log.close()


#: Starts a gateway on a Redis URL and waits until it listens.
StartGateway = Callable[..., GatewayProcess]


def gateway_starter(directory: Path) -> Iterator[StartGateway]:
    """Starts gateways; those that still run at the end of the test are killed."""
    started: list[GatewayProcess] = []

    def start(
        redis_url: str, command: tuple[str, ...] = PYTHON_M, **settings: str
    ) -> GatewayProcess:
        if command == UVICORN:
            command = (*command, "--port", str(free_port()))
        given = {"PORT": "0", "REDIS_URL": redis_url, **settings}
        started.append(GatewayProcess(command, directory / f"gateway-{len(started)}.log", **given))
        return started[-1].wait_until_listening()

    yield start
    for gateway in started:
        gateway.close()


def complaints(log: str) -> list[str]:
    """Log lines above the usual level, except those about the test's Redis."""
    words = ("ERROR", "CRITICAL", "WARNING", "Traceback", "Exception", "without completing")
    lines = [line for line in log.splitlines() if "sluice.common.process.preflight" not in line]
    return [line for line in lines if any(word in line for word in words)]


class RawStream:
    """An SSE client over a bare socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = Parser()
        self.status = 0

    @classmethod
    async def open(cls, port: int, target: str) -> RawStream:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target.encode())
        stream = cls(reader, writer)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
        stream.status = int(head.split(b" ", 2)[1])
        assert b"transfer-encoding: chunked" in head.lower()
        return stream

    @classmethod
    async def event_types(cls, port: int, job_id: str) -> list[str | None]:
        """Types of a job's events until the end of its stream."""
        stream = await cls.open(port, f"/v1/jobs/{job_id}/events")
        kinds = [block.event for block in await stream.rest()]
        await stream.close()
        return kinds

    async def next(self) -> Block | None:
        """The next block; None after a proper end of the chunked body."""
        while not self._parser.blocks:
            size = await asyncio.wait_for(self._reader.readuntil(b"\r\n"), TIMEOUT_S)
            chunk = await self._reader.readexactly(int(size, 16) + 2)
            if chunk == b"\r\n":
                self._parser.finish()
                return None
            self._parser.feed(chunk[:-2])
        return self._parser.blocks.pop(0)

    async def wait_for(self, event: str) -> RawStream:
        while (block := await self.next()) is not None and block.event != event:
            pass
        return self

    async def rest(self) -> list[Block]:
        blocks = []
        while (block := await self.next()) is not None:
            blocks.append(block)
        return blocks

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
