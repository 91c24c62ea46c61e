"""An HTTP client that can send invalid requests: raw bytes out, parsed responses in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.gateway.asgi import Answer
from tests.support.processes.gateway import TIMEOUT_S


class Raw:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *pieces: bytes) -> None:
        """Send bytes unchanged, in one write each."""
        for piece in pieces:
            self.writer.write(piece)

    async def answer(self) -> Answer:
        """The next complete response."""
        head = await self._within(self.reader.readuntil(b"\r\n\r\n"))
        status_line, *lines = head[:-4].decode("latin-1").split("\r\n")
        pairs = [line.split(": ", 1) for line in lines]
        headers = [(name.lower(), value) for name, value in pairs]
        status = int(status_line.split(" ")[1])
        length = dict(headers).get("content-length", "0")
        body = await self._within(self.reader.readexactly(int(length)))
        return Answer(status, headers, body)

    async def end(self) -> bytes:
        """All bytes until the other side closes or resets the connection."""
        try:
            return await self._within(self.reader.read())
        except ConnectionError:
            return b""

    async def drip(self, data: bytes, every_s: float = 0.02) -> None:
        """Send byte by byte, until all is sent or the other side closes."""
        for position in range(len(data)):
            if self.reader.at_eof() or self.writer.is_closing():
                return
            self.writer.write(data[position : position + 1])
            await asyncio.sleep(every_s)

    async def _within(self, reading: Any) -> bytes:
        return await asyncio.wait_for(reading, TIMEOUT_S)

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def raw(port: int) -> AsyncIterator[Raw]:
    """A connection to this machine, closed at the end."""
    opened = Raw(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield opened
    finally:
        opened.close()


def get(target: str = "/healthz", **headers: str) -> bytes:
    """A GET as bytes."""
    lines = [f"GET {target} HTTP/1.1", "Host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def post(body: object, target: str = "/v1/jobs", **headers: str) -> bytes:
    """A POST of JSON as bytes."""
    content = json.dumps(body).encode()
    lines = [f"POST {target} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if "Content_Length" not in headers and "Transfer_Encoding" not in headers:
        lines.append(f"Content-Length: {len(content)}")
    return "\r\n".join([*lines, "", ""]).encode() + content
