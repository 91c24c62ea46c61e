"""One answer of the scripted model server on its way out over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

from tests.support.model_answers import Answer, Cut


class HungUp(Exception):
    """The client has closed the connection."""


class CutOff(Exception):
    """The script said to end the connection here."""


@dataclass
class Seen:
    """A request for an answer or for embeddings, and what became of it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    #: How many deltas were sent.
    tokens: int = 0
    hung_up: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    #: `time.monotonic()` of both.
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    #: When each delta was sent.
    sent: list[float] = field(default_factory=list)


class Reply:
    """One answer on its way out, with an eye on whether anybody still listens."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def json(self, value: object, status: int = 200) -> None:
        await self.whole(json.dumps(value).encode(), status, {"Content-Type": "application/json"})

    async def whole(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        self._head(status, {**headers, "Content-Length": str(len(body))})
        self._writer.write(body)
        await self._writer.drain()

    def _head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", *(f"{k}: {v}" for k, v in headers.items())]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def patience(self, what: float | asyncio.Event) -> None:
        """Wait for seconds or an event, unless the client hangs up."""
        waiting = asyncio.ensure_future(
            what.wait() if isinstance(what, asyncio.Event) else asyncio.sleep(what)
        )
        watching = asyncio.ensure_future(self._reader.read(1))
        try:
            await asyncio.wait({waiting, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                raise HungUp
        finally:
            for task in (waiting, watching):
                task.cancel()
            await asyncio.gather(waiting, watching, return_exceptions=True)

    async def answer(self, answer: Answer, seen: Seen, model: str) -> None:
        if answer.before:
            await self.patience(answer.before)
        if answer.body is not None:
            kind = {"Content-Type": "application/json"}
            await self.whole(answer.body, answer.status, {**kind, **answer.headers})
            return
        usage = answer.usage
        if usage is None:
            prompt = sum(len(str(m.get("content")).split()) for m in seen.body.get("messages", ()))
            said = sum(isinstance(step, dict) for step in answer.steps)
            usage = {"prompt_tokens": prompt, "completion_tokens": said}
            usage["total_tokens"] = prompt + said
        base = {"id": "chatcmpl-1", "created": 1, "model": model}
        if not answer.streams or not seen.body.get("stream"):
            await self._in_one_piece(answer, base, usage)
            return
        await self._stream(answer, seen, base, usage)

    async def _in_one_piece(
        self, answer: Answer, base: dict[str, Any], usage: dict[str, Any]
    ) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.calls:
            message["tool_calls"] = answer.calls
        choice = {"index": 0, "message": message, "finish_reason": answer.finish}
        await self.json({**base, "object": "chat.completion", "choices": [choice], "usage": usage})

    async def _stream(
        self, answer: Answer, seen: Seen, base: dict[str, Any], usage: dict[str, Any]
    ) -> None:
        chunk = {**base, "object": "chat.completion.chunk"}
        kind = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        self._head(answer.status, {**kind, **answer.headers})
        for step in answer.steps:
            if isinstance(step, dict):
                choice = {"index": 0, "delta": step, "finish_reason": None}
                # A delta that brings its own choices is a chunk of its own making.
                made = step if "choices" in step else {**chunk, "choices": [choice]}
                await self._event(made)
                seen.tokens += 1
                seen.sent.append(time.monotonic())
            elif isinstance(step, bytes):
                await self._bytes(step)
            elif isinstance(step, Cut):
                await self._cut(step)
            else:
                await self.patience(step)
        if answer.finish is not None:
            end = {"index": 0, "delta": {}, "finish_reason": answer.finish}
            timings = {} if answer.timings is None else {"timings": answer.timings}
            await self._event({**chunk, "choices": [end], **timings})
        asked = (seen.body.get("stream_options") or {}).get("include_usage")
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
            raise HungUp
        self._writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self._writer.drain()

    async def _cut(self, cut: Cut) -> None:
        if cut.reset:
            sock = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
        else:
            self._writer.close()
        raise CutOff
