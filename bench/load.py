"""A cheap HTTP load generator: packed requests, keep-alive, one active request per connection.

`python -m bench.load PORT CONNECTIONS` sends the number of requests given in each line on stdin.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import cast

import uvloop

from bench.jobs import PAYLOAD
from sluice.common.contracts.jobs import JobField, Task

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"


def request(port: int) -> bytes:
    """One POST request as bytes."""
    body = json.dumps(
        {JobField.TASK: Task.CHAT.value, JobField.PAYLOAD: json.loads(PAYLOAD)}
    ).encode()
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: application/json\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Round:
    """Requests left to send and responses left to receive."""

    def __init__(self, count: int) -> None:
        self.to_send = self.to_receive = count
        self.accepted = 0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Connection(asyncio.Protocol):
    """Sends the next request as soon as the previous one is answered."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._received = b""
        self._round: Round | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def start(self, round_: Round) -> None:
        self._round = round_
        self._next(round_)

    def _next(self, round_: Round) -> None:
        if round_.to_send:
            round_.to_send -= 1
            self._transport.write(self._packed)

    def data_received(self, data: bytes) -> None:
        """Counts a complete response and sends the next request."""
        self._received += data
        head, separator, body = self._received.partition(_HEAD_END)
        length = _LENGTH.search(head)
        if not separator or length is None or len(body) < int(length[1]):
            return
        self._received = b""
        round_ = self._round
        assert round_ is not None
        round_.accepted += head.startswith(b"HTTP/1.1 202")
        round_.to_receive -= 1
        if round_.to_receive == 0:
            round_.finished.set_result(None)
        self._next(round_)

    def connection_lost(self, error: Exception | None) -> None:
        """A closed connection fails the round."""
        if self._round is not None and not self._round.finished.done():
            self._round.finished.set_exception(ConnectionError("the server closed the connection"))


async def main(port: int, connections: int) -> None:
    """Runs one round per line on stdin."""
    loop = asyncio.get_running_loop()
    packed = request(port)
    clients = [
        (await loop.create_connection(lambda: Connection(packed), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    print("{}", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        round_ = Round(json.loads(line)["requests"])
        started = time.perf_counter()
        for client in clients:
            client.start(round_)
        await round_.finished
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "accepted": round_.accepted}), flush=True)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
