"""An ASGI client without a network: tests control every byte of a request."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from tests.support.gateway.sse import Block, Parser

#: Long enough for a slow machine; never waited for in a test that passes.
TIMEOUT_S = 10.0
JSON = {"content-type": "application/json"}

Headers = dict[str, str] | Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Answer:
    """A complete response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key == name.lower()]
        assert len(found) < 2, f"{name} came {len(found)} times"
        return found[0] if found else None

    def json(self) -> Any:
        return json.loads(self.body)


class Exchange:
    """A running request. `take` is cleared by a client that stops reading."""

    def __init__(self, app: Any, scope: dict[str, Any], chunks: Iterable[bytes]) -> None:
        self._chunks = deque(chunks)
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._hung_up = asyncio.Event()
        self.take = asyncio.Event()
        self.take.set()
        #: Set once the app sends to a client that does not read.
        self.held_up = asyncio.Event()
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self._parser = Parser()
        self._over = False
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._chunks:
            body = self._chunks.popleft()
            return {"type": "http.request", "body": body, "more_body": bool(self._chunks)}
        await self._hung_up.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if not self.take.is_set():
            self.held_up.set()
        await self.take.wait()
        self._sent.put_nowait(message)

    async def _message(self) -> dict[str, Any]:
        """The app's next message; fails when the app ends without one, or is too slow."""
        getting = asyncio.ensure_future(self._sent.get())
        await asyncio.wait(
            {getting, self.task}, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if getting.done():
            return getting.result()
        getting.cancel()
        if self.task.done():
            self.task.result()
            if not self._sent.empty():
                return self._sent.get_nowait()
            raise AssertionError("the app returned without completing the answer")
        raise AssertionError(f"nothing came within {TIMEOUT_S} s")

    async def start(self) -> Exchange:
        message = await self._message()
        assert message["type"] == "http.response.start", message
        self.status = message["status"]
        self.headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in message["headers"]]
        assert all(name == name.lower() for name, _ in self.headers)
        assert all("\n" not in text and "\r" not in text for pair in self.headers for text in pair)
        return self

    def header(self, name: str) -> str | None:
        return Answer(self.status, self.headers, b"").header(name)

    async def chunk(self) -> bytes | None:
        """The next piece of the body, None at its end."""
        if self._over:
            return None
        message = await self._message()
        assert message["type"] == "http.response.body", message
        self._over = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return None if self._over and not body else body

    async def body(self) -> bytes:
        whole = b""
        while (piece := await self.chunk()) is not None:
            whole += piece
        return whole

    async def answer(self) -> Answer:
        await self.start()
        body = await self.body()
        await asyncio.wait_for(self.task, TIMEOUT_S)
        return Answer(self.status, self.headers, body)

    async def block(self) -> Block:
        """The next SSE block; fails if the stream has ended."""
        block = await self.next()
        assert block is not None, "the stream has ended"
        return block

    async def next(self) -> Block | None:
        """The next SSE block, None when the stream has ended."""
        while not self._parser.blocks:
            piece = await self.chunk()
            if piece is None:
                self._parser.finish()
                await asyncio.wait_for(self.task, TIMEOUT_S)
                return None
            self._parser.feed(piece)
        return self._parser.blocks.pop(0)

    async def rest(self) -> list[Block]:
        """Every event up to the end of the stream, comments left out."""
        blocks = []
        while (block := await self.next()) is not None:
            if not block.comment:
                blocks.append(block)
        return blocks

    async def event(self, type: str) -> Block:
        """Reads on to the next event of a type."""
        while (block := await self.next()) is not None:
            if block.event == type:
                return block
        raise AssertionError(f"the stream ended without {type}")

    async def hang_up(self) -> None:
        """Disconnect; returns when the app has noticed."""
        self._hung_up.set()
        await asyncio.wait_for(self.task, TIMEOUT_S)

    async def abandon(self) -> None:
        self._hung_up.set()
        self.take.set()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def _pairs(headers: Headers) -> list[tuple[str, str]]:
    """Header names may be written like names of arguments; the last value counts."""
    if not isinstance(headers, dict):
        return list(headers)
    return list({name.replace("_", "-"): value for name, value in headers.items()}.items())


def _encode(body: object, headers: Headers) -> tuple[bytes, list[tuple[str, str]]]:
    """The bytes of a body and the headers with its length."""
    pairs = _pairs(headers)
    if isinstance(body, bytes):
        raw = body
    elif body is None:
        raw = b""
    else:
        raw = json.dumps(body).encode()
        pairs = (
            _pairs({**JSON, **dict(pairs)})
            if isinstance(headers, dict)
            else [*JSON.items(), *pairs]
        )
    if raw and not any(name == "content-length" for name, _ in pairs):
        pairs.append(("content-length", str(len(raw))))
    return raw, pairs


class Client:
    """Sends requests to an ASGI app; abandons at the end what a test left open."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._open: list[Exchange] = []

    def begin(
        self,
        method: str,
        target: str,
        headers: Headers = (),
        chunks: Iterable[bytes] = (b"",),
        *,
        own_host: bool = True,
        kind: type[Exchange] = Exchange,
    ) -> Exchange:
        """A request. `own_host` False: without a Host header. `kind`: for unusual clients."""
        path, _, query = target.partition("?")
        pairs = _pairs(headers)
        if own_host and not any(name.lower() == "host" for name, _ in pairs):
            pairs.insert(0, ("host", "localhost:8080"))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode("latin-1"),
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in pairs],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8080),
        }
        exchange = kind(self.app, scope, chunks)
        self._open.append(exchange)
        return exchange

    def request(
        self, method: str, target: str, headers: Headers = (), body: object = None
    ) -> Exchange:
        """A request with a whole body: bytes, or a value that is sent as JSON."""
        raw, pairs = _encode(body, headers)
        return self.begin(method, target, pairs, [raw])

    async def send(
        self, method: str, target: str, headers: Headers = (), body: object = None
    ) -> Answer:
        return await self.request(method, target, headers, body).answer()

    async def get(self, target: str, headers: Headers = ()) -> Answer:
        return await self.send("GET", target, headers)

    async def post(self, body: object, headers: dict[str, str] | None = None) -> Answer:
        """`POST /v1/jobs` with JSON, given as a value or as bytes."""
        return await self.send("POST", "/v1/jobs", {**JSON, **(headers or {})}, body)

    async def pages(
        self, target: str, parameter: str = "before", headers: Headers = ()
    ) -> list[Any]:
        """The bodies of all pages of a list."""
        found: list[Any] = []
        url = target
        while len(found) < 500:
            answer = await self.get(url, headers)
            assert answer.status == 200, answer
            found.append(answer.json())
            pagination = found[-1].get("result", found[-1]).get("pagination")
            position = pagination["next_cursor"] if pagination else found[-1].get("next")
            if position is None:
                return found
            url = f"{target}{'&' if '?' in target else '?'}{parameter}={quote(position)}"
        raise AssertionError("the list does not end")

    async def watch(self, job_id: str, headers: Headers = (), query: str = "") -> Exchange:
        """An event stream, its headers read."""
        return await self.begin("GET", f"/v1/jobs/{job_id}/events{query}", headers).start()

    async def close(self) -> None:
        for exchange in self._open:
            await exchange.abandon()
