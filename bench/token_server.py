"""`python -m bench.token_server PORT`: a model server whose tokens contain their send time.

Each token is the monotonic clock in nanoseconds, which all processes of the machine share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

#: Like a small model on a small GPU: a delay before the first token, then 25 per second.
FIRST_TOKEN_S = 0.05
TOKEN_S = 0.04
TOKENS = 8
MODEL = "bench"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = 0
            if b"content-length:" in head:
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            if head.startswith(b"post"):
                await _answer(writer)
            else:
                _json_response(writer, head.split(b" ")[1])
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def _answer(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    await asyncio.sleep(FIRST_TOKEN_S)
    for _ in range(TOKENS):
        _chunk(writer, {"choices": [{"index": 0, "delta": {"content": f"{_now_ns()} "}}]})
        await writer.drain()
        await asyncio.sleep(TOKEN_S)
    _chunk(writer, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    _part(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")


def _chunk(writer: asyncio.StreamWriter, value: dict[str, object]) -> None:
    body = {"object": "chat.completion.chunk", "model": MODEL, **value}
    _part(writer, b"data: " + json.dumps(body).encode() + b"\n\n")


def _part(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def _json_response(writer: asyncio.StreamWriter, path: bytes) -> None:
    value: dict[str, object] = {"status": "ok"}
    if path.endswith(b"/models"):
        value = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
    elif path.endswith(b"/props"):
        value = {"total_slots": 4}
    body = json.dumps(value).encode()
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )


def _now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


async def _main(port: int) -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
