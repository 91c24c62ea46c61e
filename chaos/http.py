"""A minimal HTTP client: one connection per request, and every failure is visible."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

#: A gateway without Redis responds sooner than this.
ANSWER_TIMEOUT_S = 12.0
#: Streams have heartbeats, so a stream without data for this long is dead.
READ_TIMEOUT_S = 10.0
_JSON = "application/json"
_HEAD_END = b"\r\n\r\n"


class Unanswered(Exception):
    """No response, or an incomplete one: whether the request had an effect is unknown."""


class Answer(NamedTuple):
    """A complete response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Frame(NamedTuple):
    """One SSE frame; `id` is empty for frames of the gateway itself."""

    id: str
    type: str


async def request(
    port: int,
    method: str,
    target: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Sends one request; raises Unanswered."""
    try:
        return await asyncio.wait_for(
            _request(port, method, target, body, headers or {}), ANSWER_TIMEOUT_S
        )
    except (OSError, EOFError, asyncio.TimeoutError, ValueError) as error:
        raise Unanswered(repr(error)) from error


async def _request(
    port: int, method: str, target: str, body: object, headers: Mapping[str, str]
) -> Answer:
    async with _sent(port, method, target, body, headers) as reader:
        status, headers_received = await _head(reader)
        length = int(headers_received.get("content-length", "0"))
        return Answer(status, headers_received, await reader.readexactly(length))


class EventStream:
    """The event stream of a job."""

    def __init__(self, status: int, reader: asyncio.StreamReader) -> None:
        self.status = status
        self._reader = reader

    async def frames(self) -> AsyncIterator[Frame]:
        """Yields frames until the stream ends properly; raises Unanswered if it is cut off."""
        event_id = kind = ""
        try:
            async for line in self._lines():
                name, _, value = line.partition(":")
                if name == "id":
                    event_id = value.strip()
                elif name == "event":
                    kind = value.strip()
                elif not line and kind:
                    yield Frame(event_id, kind)
                    event_id = kind = ""
        except (OSError, EOFError, asyncio.TimeoutError, ValueError) as error:
            raise Unanswered(repr(error)) from error

    async def _lines(self) -> AsyncIterator[str]:
        rest = b""
        while True:
            size = await asyncio.wait_for(self._reader.readuntil(b"\r\n"), READ_TIMEOUT_S)
            chunk = await asyncio.wait_for(
                self._reader.readexactly(int(size, 16) + 2), READ_TIMEOUT_S
            )
            if chunk == b"\r\n":
                return
            *lines, rest = (rest + chunk[:-2]).split(b"\n")
            for line in lines:
                yield line.decode().rstrip("\r")


@asynccontextmanager
async def events(port: int, job_id: str, last_event_id: str) -> AsyncIterator[EventStream]:
    """Opens the stream of a job after an event; raises Unanswered."""
    headers = {"Accept": "text/event-stream"}
    if last_event_id:
        headers["Last-Event-ID"] = last_event_id
    try:
        async with _sent(port, "GET", f"/v1/jobs/{job_id}/events", None, headers) as reader:
            status, _ = await asyncio.wait_for(_head(reader), ANSWER_TIMEOUT_S)
            yield EventStream(status, reader)
    except (OSError, EOFError, asyncio.TimeoutError, ValueError) as error:
        raise Unanswered(repr(error)) from error


@asynccontextmanager
async def _sent(
    port: int, method: str, target: str, body: object, headers: Mapping[str, str]
) -> AsyncIterator[asyncio.StreamReader]:
    packed = b"" if body is None else json.dumps(body).encode()
    all_headers = {
        "Host": f"127.0.0.1:{port}",
        "Connection": "close",
        "Content-Length": str(len(packed)),
        **({"Content-Type": _JSON} if packed else {}),
        **headers,
    }
    lines = [
        f"{method} {target} HTTP/1.1",
        *(f"{name}: {value}" for name, value in all_headers.items()),
    ]
    connecting = asyncio.open_connection("127.0.0.1", port)
    reader, writer = await asyncio.wait_for(connecting, ANSWER_TIMEOUT_S)
    try:
        writer.write("\r\n".join(lines).encode() + _HEAD_END + packed)
        yield reader
    finally:
        writer.transport.abort()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(_HEAD_END)).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return int(first.split(" ")[1]), {name.lower(): value.strip() for name, _, value in pairs}
