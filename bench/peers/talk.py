"""Protocol between the benchmark and the clients: one JSON line in, one JSON line out.

Runs in the virtualenv of each system, so it uses only the standard library.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

#: Concurrent submitters; a system without asyncio has one.
CALLERS = 16
#: Concurrent checks of results, after everything was timed.
CHECKERS = 32
RESULT_TIMEOUT_S = 30

TEXT = ("sluice " * 40)[:189]
#: 200 bytes as JSON.
PAYLOAD = {"text": TEXT}


def redis_url() -> str:
    return os.environ["PEER_REDIS_URL"]


class AsyncClient(Protocol):
    """Client of a system with asyncio."""

    async def submit(self) -> Any:
        """Submits one job; returns a handle for its result."""

    async def result(self, job: Any) -> Any:
        """Waits for the result with the system's own method."""


class PlainClient(Protocol):
    """Client of a system without asyncio."""

    def submit(self) -> Any:
        """Submits one job; returns a handle for its result."""

    def result(self, job: Any) -> Any:
        """Waits for the result with the system's own method."""


async def serve(client: AsyncClient) -> None:
    """Handles one request per line until stdin ends."""
    jobs: list[Any] = []
    loop = asyncio.get_running_loop()
    _reply(ready=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        if request["do"] == "latency":
            _reply(ms=[await _timed(client) for _ in range(request["count"])])
        elif request["do"] == "enqueue":
            remaining = iter(range(request["count"]))
            started = time.perf_counter()
            await asyncio.gather(*(_submit(client, remaining, jobs) for _ in range(CALLERS)))
            _reply(seconds=time.perf_counter() - started)
        elif request["do"] == "check":
            remaining = iter(jobs)
            right = await asyncio.gather(*(_check(client, remaining) for _ in range(CHECKERS)))
            _reply(right=sum(right))
            jobs.clear()


def serve_plain(client: PlainClient) -> None:
    """Like `serve`, for a blocking client."""
    jobs: list[Any] = []
    _reply(ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "latency":
            _reply(ms=[_timed_plain(client) for _ in range(request["count"])])
        elif request["do"] == "enqueue":
            started = time.perf_counter()
            jobs.extend(client.submit() for _ in range(request["count"]))
            _reply(seconds=time.perf_counter() - started)
        elif request["do"] == "check":
            with ThreadPoolExecutor(4) as threads:
                results = threads.map(client.result, jobs)
                _reply(right=sum(result == PAYLOAD for result in results))
            jobs.clear()


def run(main: Callable[[], Any]) -> None:
    """Runs a coroutine, on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.install()
        asyncio.run(main())


async def _submit(client: AsyncClient, remaining: Any, jobs: list[Any]) -> None:
    for _ in remaining:
        jobs.append(await client.submit())


async def _check(client: AsyncClient, remaining: Any) -> int:
    return sum([await client.result(job) == PAYLOAD for job in remaining])


async def _timed(client: AsyncClient) -> float:
    # submits and waits in one call, if the system can
    run: Callable[[], Any] | None = getattr(client, "run", None)
    started = time.perf_counter()
    result = await (run() if run else client.result(await client.submit()))
    return _ms_since(started, result)


def _timed_plain(client: PlainClient) -> float:
    started = time.perf_counter()
    result = client.result(client.submit())
    return _ms_since(started, result)


def _ms_since(started: float, result: Any) -> float:
    took = time.perf_counter() - started
    if result != PAYLOAD:
        raise ValueError(f"unexpected result: {result!r}")
    return took * 1000


def _reply(**members: Any) -> None:
    print(json.dumps(members), flush=True)
