"""Many SSE clients in one process: each watches a job and records the latency of its events.

`python -m bench.watchers PORT` opens the streams named in its first line, then answers each further
line when the given number of events has arrived.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import cast

import uvloop

_AT = re.compile(rb'"at": ?(\d+)')
_HELLO = b"event: hello"
_RUNNING = b"event: running"
_OPEN_AT_ONCE = 50
_TIMEOUT_S = 120.0


class Received:
    """What all clients have received."""

    def __init__(self) -> None:
        self.open = 0
        self.latencies_ns: list[int] = []
        self.last_at = 0.0
        self.changed = asyncio.Event()

    async def wait(self, what: str, enough: int) -> None:
        """Waits until that many streams are open, or that many events have arrived."""
        deadline = time.monotonic() + _TIMEOUT_S
        while (self.open if what == "open" else len(self.latencies_ns)) < enough:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), deadline - time.monotonic())


class Client(asyncio.Protocol):
    """One stream."""

    def __init__(self, received: Received, packed: bytes) -> None:
        self._received = received
        self._packed = packed
        self._live = False
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._packed)

    def data_received(self, data: bytes) -> None:
        """Records the latency of each event; the stored `running` event shows that the stream is
        live.
        """
        now = time.monotonic_ns()
        received = self._received
        data = self._rest + data
        if not self._live and _HELLO in data and _RUNNING in data:
            self._live = True
            received.open += 1
            received.changed.set()
        stamps = _AT.findall(data)
        # An incomplete frame is parsed again together with its rest.
        self._rest = b"" if data.endswith(b"\n") else data[data.rfind(b"\n") + 1 :]
        if self._rest and _AT.search(self._rest):
            stamps.pop()
        if not self._live:
            self._rest = data
        if stamps:
            received.latencies_ns += [now - int(stamp) for stamp in stamps]
            received.last_at = now / 1e9
            received.changed.set()


def request(port: int, job_id: str) -> bytes:
    """One GET request as bytes."""
    return (
        f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        "Accept: text/event-stream\r\n\r\n"
    ).encode()


async def main(port: int) -> None:
    """Opens the streams, then reports round by round."""
    loop = asyncio.get_running_loop()
    received = Received()
    job_ids = json.loads(sys.stdin.readline())["job_ids"]
    for start in range(0, len(job_ids), _OPEN_AT_ONCE):
        group = job_ids[start : start + _OPEN_AT_ONCE]
        for job_id in group:
            packed = request(port, job_id)
            await loop.create_connection(lambda p=packed: Client(received, p), "127.0.0.1", port)  # type: ignore[misc]
        await received.wait("open", start + len(group))
    print("{}", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        wanted = json.loads(line)["events"]
        await received.wait("events", wanted)
        answer = {"latencies_ns": received.latencies_ns, "last_at": received.last_at}
        print(json.dumps(answer), flush=True)
        received.latencies_ns = []


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
