"""A webhook receiver with scripted responses that records all requests.

Runs in the test's event loop (`Receiver`), or as a process: `python -m
tests.support.webhook_receiver SCRIPT RECORD` reads responses by path from one file and appends one
JSON line per request to the other. Its first output line is its port.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Instead of a status: no response; a response that never ends; a closed connection.
HANG, DRIP, CUT = "hang", "drip", "cut"


@dataclass(frozen=True)
class Answer:
    """A status with headers and body, or one of the names above."""

    status: int | str = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"ok"


@dataclass(frozen=True)
class ReceivedRequest:
    """One request."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float

    @property
    def event(self) -> Any:
        return json.loads(self.body)

    @property
    def event_id(self) -> str:
        return str(self.event["event_id"])


#: Responses by path, in order; the last one is repeated.
Script = Mapping[str, Sequence[Answer | int | str]]


class Receiver:
    """Accepts any number of connections, one request each."""

    def __init__(
        self,
        script: Script | None = None,
        on_request: Callable[[ReceivedRequest], None] | None = None,
    ) -> None:
        self.script: dict[str, Sequence[Answer | int | str]] = dict(script or {})
        self.got: list[ReceivedRequest] = []
        self.connections = 0
        self.active: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._on_request = on_request
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._scheme = "http"

    async def start(self, tls: ssl.SSLContext | None = None) -> Receiver:
        self._scheme = "https" if tls else "http"
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        return self

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self._scheme}://{host}:{self.port}{path}"

    def at(self, path: str) -> list[ReceivedRequest]:
        return [each for each in self.got if each.path == path]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._answer(reader, writer)
        writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip().split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        got = ReceivedRequest(first.split()[1], headers, body, time.time())
        self.got.append(got)
        if self._on_request is not None:
            self._on_request(got)
        answer = self._next(got.path)
        self.active[got.path] += 1
        try:
            await _send(answer, writer)
        finally:
            self.active[got.path] -= 1

    def _next(self, path: str) -> Answer:
        answers = self.script.get(path, [200])
        answer = answers[min(self._counts[path], len(answers) - 1)]
        self._counts[path] += 1
        return answer if isinstance(answer, Answer) else Answer(answer)


async def _send(answer: Answer, writer: asyncio.StreamWriter) -> None:
    if answer.status == CUT:
        return
    if answer.status == HANG:
        await asyncio.sleep(3600)
    status = 200 if answer.status == DRIP else answer.status
    length = 1 << 30 if answer.status == DRIP else len(answer.body)
    lines = [f"HTTP/1.1 {status} Scripted", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + answer.body)
    await writer.drain()
    while answer.status == DRIP:
        writer.write(b".")
        await writer.drain()
        await asyncio.sleep(0.05)
    writer.close()
    await writer.wait_closed()


async def _main(script: Path, record: Path) -> None:
    answers = {
        path: [Answer(**each) if isinstance(each, dict) else each for each in each_path]
        for path, each_path in json.loads(script.read_text()).items()
    }

    def record_request(got: ReceivedRequest) -> None:
        line = {
            "path": got.path,
            "headers": dict(got.headers),
            "body": base64.b64encode(got.body).decode(),
            "at": got.at,
        }
        with record.open("a") as file:
            file.write(json.dumps(line) + "\n")

    receiver = await Receiver(answers, record_request).start()
    print(receiver.port, flush=True)
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), Path(sys.argv[2])))
