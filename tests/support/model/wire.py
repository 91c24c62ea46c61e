"""Sends one answer of the scripted model server over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from tests.support.model.answers import Answer, Cut


class ClientDisconnected(Exception):
    """The client has closed the connection."""


class ScriptedDisconnect(Exception):
    """The script ends the connection here."""


@dataclass
class ReceivedRequest:
    """A completion or embedding request, and its progress."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    #: Number of deltas sent.
    tokens: int = 0
    hung_up: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    #: `time.monotonic()` of the end.
    ended: float = 0.0


class Reply:
    """One response; detects whether the client is still connected."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def json(self, value: object, status: int = 200) -> None:
        await self.send_body(
            json.dumps(value).encode(), status, {"Content-Type": "application/json"}
        )

    async def send_body(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        self._head(status, {**headers, "Content-Length": str(len(body))})
        self._writer.write(body)
        await self._writer.drain()

    def _head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", *(f"{k}: {v}" for k, v in headers.items())]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def wait(self, what: float | asyncio.Event) -> None:
        """Waits for seconds or an event; raises ClientDisconnected if the client leaves."""
        waiting = asyncio.ensure_future(
            what.wait() if isinstance(what, asyncio.Event) else asyncio.sleep(what)
        )
        watching = asyncio.ensure_future(self._reader.read(1))
        try:
            await asyncio.wait({waiting, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                raise ClientDisconnected
        finally:
            for task in (waiting, watching):
                task.cancel()
            await asyncio.gather(waiting, watching, return_exceptions=True)

    async def answer(self, answer: Answer, request: ReceivedRequest, model: str) -> None:
        if answer.before:
            await self.wait(answer.before)
        if answer.body is not None:
            kind = {"Content-Type": "application/json"}
            await self.send_body(answer.body, answer.status, {**kind, **answer.headers})
            return
        usage = answer.usage
        if usage is None:
            prompt = sum(
                len(str(m.get("content")).split()) for m in request.body.get("messages", ())
            )
            completion_tokens = sum(isinstance(step, dict) for step in answer.steps)
            usage = {"prompt_tokens": prompt, "completion_tokens": completion_tokens}
            usage["total_tokens"] = prompt + completion_tokens
        base = {"id": "chatcmpl-1", "created": 1, "model": model}
        if not answer.streams or not request.body.get("stream"):
            await self._in_one_piece(answer, base, usage)
            return
        await self._stream(answer, request, base, usage)

    async def _in_one_piece(
        self, answer: Answer, base: dict[str, Any], usage: dict[str, Any]
    ) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.calls:
            message["tool_calls"] = answer.calls
        choice = {"index": 0, "message": message, "finish_reason": answer.finish}
        await self.json({**base, "object": "chat.completion", "choices": [choice], "usage": usage})

    async def _stream(
        self, answer: Answer, request: ReceivedRequest, base: dict[str, Any], usage: dict[str, Any]
    ) -> None:
        chunk = {**base, "object": "chat.completion.chunk"}
        kind = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        self._head(answer.status, {**kind, **answer.headers})
        for step in answer.steps:
            if isinstance(step, dict):
                choice = {"index": 0, "delta": step, "finish_reason": None}
                # A delta with `choices` is a complete chunk.
                made = step if "choices" in step else {**chunk, "choices": [choice]}
                await self._event(made)
                request.tokens += 1
            elif isinstance(step, bytes):
                await self._bytes(step)
            elif isinstance(step, Cut):
                await self._cut(step)
            else:
                await self.wait(step)
        if answer.finish is not None:
            end = {"index": 0, "delta": {}, "finish_reason": answer.finish}
            timings = {} if answer.timings is None else {"timings": answer.timings}
            await self._event({**chunk, "choices": [end], **timings})
        asked = (request.body.get("stream_options") or {}).get("include_usage")
        if asked and usage:
            await self._event({**chunk, "choices": [], "usage": usage})
        if answer.done:
            await self._bytes(b"data: [DONE]\n\n")
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def _event(self, value: object) -> None:
        await self._bytes(b"data: " + json.dumps(value).encode() + b"\n\n")

    async def _bytes(self, data: bytes) -> None:
        if self._reader.at_eof() or self._writer.transport.is_closing():
            raise ClientDisconnected
        self._writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self._writer.drain()

    async def _cut(self, cut: Cut) -> None:
        if cut.reset:
            sock = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
        else:
            self._writer.close()
        raise ScriptedDisconnect
