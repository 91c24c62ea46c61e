"""Many SSE clients in one process: each watches a job and notes how late its events come.

`python -m bench.watchers PORT` opens the streams that its first line names, then answers each
further line when as many events have come as it says.
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


class Tally:
    """What all clients have received together."""

    def __init__(self) -> None:
        self.open = 0
        self.latencies_ns: list[int] = []
        self.last_at = 0.0
        self.changed = asyncio.Event()

    async def wait(self, what: str, enough: int) -> None:
        """Until that many streams are open, or that many events have come."""
        deadline = time.monotonic() + _TIMEOUT_S
        while (self.open if what == "open" else len(self.latencies_ns)) < enough:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), deadline - time.monotonic())


class Client(asyncio.Protocol):
    """One stream."""

    def __init__(self, tally: Tally, packed: bytes) -> None:
        self._tally = tally
        self._packed = packed
        self._live = False
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the events."""
        cast(asyncio.Transport, transport).write(self._packed)

    def data_received(self, data: bytes) -> None:
        """Note each event's age; the stored `running` event says that the stream is live."""
        now = time.monotonic_ns()
        tally = self._tally
        data = self._rest + data
        if not self._live and _HELLO in data and _RUNNING in data:
            self._live = True
            tally.open += 1
            tally.changed.set()
        stamps = _AT.findall(data)
        # A frame that was cut in two is looked at again with its rest.
        self._rest = b"" if data.endswith(b"\n") else data[data.rfind(b"\n") + 1 :]
        if self._rest and _AT.search(self._rest):
            stamps.pop()
        if not self._live:
            self._rest = data
        if stamps:
            tally.latencies_ns += [now - int(stamp) for stamp in stamps]
            tally.last_at = now / 1e9
            tally.changed.set()


def request(port: int, job_id: str) -> bytes:
    """One GET, as it travels."""
    return (
        f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        "Accept: text/event-stream\r\n\r\n"
    ).encode()


async def main(port: int) -> None:
    """Open the streams, then report round by round."""
    loop = asyncio.get_running_loop()
    tally = Tally()
    job_ids = json.loads(sys.stdin.readline())["job_ids"]
    for start in range(0, len(job_ids), _OPEN_AT_ONCE):
        group = job_ids[start : start + _OPEN_AT_ONCE]
        for job_id in group:
            packed = request(port, job_id)
            await loop.create_connection(lambda p=packed: Client(tally, p), "127.0.0.1", port)  # type: ignore[misc]
        await tally.wait("open", start + len(group))
    print("{}", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        wanted = json.loads(line)["events"]
        await tally.wait("events", wanted)
        answer = {"latencies_ns": tally.latencies_ns, "last_at": tally.last_at}
        print(json.dumps(answer), flush=True)
        tally.latencies_ns = []


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
