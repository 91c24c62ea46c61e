"""saq: `saq bench.peers.systems.saq.settings`. It polls for results; by default twice a second."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from saq import Job, Queue

from bench.peers import talk

#: Fastest useful interval.
POLL_S = 0.001

uvloop.install()
queue = Queue.from_url(talk.redis_url(), name="bench")


async def echo(context: dict[str, Any], *, payload: Any) -> Any:
    return payload


settings = {"queue": queue, "functions": [echo], "concurrency": 16}


class Client:
    """Submits jobs and waits for results."""

    async def submit(self) -> Job:
        job = await queue.enqueue(echo.__name__, payload=talk.PAYLOAD)
        assert job is not None
        return job

    async def result(self, job: Job) -> Any:
        await job.refresh(until_complete=talk.RESULT_TIMEOUT_S)
        return job.result

    async def run(self) -> Any:
        """Submits and waits in one call."""
        return await queue.apply(echo.__name__, poll_interval=POLL_S, payload=talk.PAYLOAD)


async def main() -> None:
    """Runs the client after the worker's first sweep, which would abort jobs that have just
    started.
    """
    await queue.connect()
    while not await queue.redis.exists(queue.namespace("sweep")):
        await asyncio.sleep(0.05)
    await talk.serve(Client())


if __name__ == "__main__":
    talk.run(main)
