"""How a client of any system talks to the benchmark: a JSON line in, a JSON line out.

Runs in the virtualenv of its system, so it needs nothing but the standard library.
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

#: Who hands in jobs at the same time; a system without asyncio has one caller.
CALLERS = 16
#: Jobs whose results are asked for at the same time, after everything was timed.
CHECKERS = 32
RESULT_TIMEOUT_S = 30

TEXT = ("sluice " * 40)[:189]
#: 200 bytes as JSON.
PAYLOAD = {"text": TEXT}


def redis_url() -> str:
    """The server that all share."""
    return os.environ["PEER_REDIS_URL"]


class AsyncClient(Protocol):
    """What a system on asyncio offers."""

    async def submit(self) -> Any:
        """Hand in one job; returns what leads to its result."""

    async def result(self, job: Any) -> Any:
        """Wait for its result in the system's own way."""


class PlainClient(Protocol):
    """The same without asyncio."""

    def submit(self) -> Any:
        """Hand in one job; returns what leads to its result."""

    def result(self, job: Any) -> Any:
        """Wait for its result in the system's own way."""


async def serve(client: AsyncClient) -> None:
    """Answer one line after the other until they end."""
    jobs: list[Any] = []
    loop = asyncio.get_running_loop()
    _say(ready=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        if asked["do"] == "latency":
            _say(ms=[await _timed(client) for _ in range(asked["count"])])
        elif asked["do"] == "enqueue":
            left = iter(range(asked["count"]))
            started = time.perf_counter()
            await asyncio.gather(*(_hand_in(client, left, jobs) for _ in range(CALLERS)))
            _say(seconds=time.perf_counter() - started)
        elif asked["do"] == "check":
            left = iter(jobs)
            right = await asyncio.gather(*(_check(client, left) for _ in range(CHECKERS)))
            _say(right=sum(right))
            jobs.clear()


def serve_plain(client: PlainClient) -> None:
    """The same for a client that blocks."""
    jobs: list[Any] = []
    _say(ready=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "latency":
            _say(ms=[_timed_plain(client) for _ in range(asked["count"])])
        elif asked["do"] == "enqueue":
            started = time.perf_counter()
            jobs.extend(client.submit() for _ in range(asked["count"]))
            _say(seconds=time.perf_counter() - started)
        elif asked["do"] == "check":
            with ThreadPoolExecutor(4) as threads:
                results = threads.map(client.result, jobs)
                _say(right=sum(result == PAYLOAD for result in results))
            jobs.clear()


def run(main: Callable[[], Any]) -> None:
    """A coroutine on uvloop, as the workers have it."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.install()
        asyncio.run(main())


async def _hand_in(client: AsyncClient, left: Any, jobs: list[Any]) -> None:
    for _ in left:
        jobs.append(await client.submit())


async def _check(client: AsyncClient, left: Any) -> int:
    return sum([await client.result(job) == PAYLOAD for job in left])


async def _timed(client: AsyncClient) -> float:
    run: Callable[[], Any] | None = getattr(client, "run", None)  # both in one call
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
        raise ValueError(f"the result is no echo: {result!r}")
    return took * 1000


def _say(**words: Any) -> None:
    print(json.dumps(words), flush=True)
