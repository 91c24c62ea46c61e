"""saq: `saq bench.peers.systems.saq.settings`. It polls for results; by default twice a second."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from saq import Job, Queue

from bench.peers import talk

#: As often as does it any good.
POLL_S = 0.001

uvloop.install()
queue = Queue.from_url(talk.redis_url(), name="bench")


async def echo(context: dict[str, Any], *, payload: Any) -> Any:
    """The job."""
    return payload


settings = {"queue": queue, "functions": [echo], "concurrency": 16}


class Client:
    """Hands in jobs and waits."""

    async def submit(self) -> Job:
        """One job."""
        job = await queue.enqueue(echo.__name__, payload=talk.PAYLOAD)
        assert job is not None
        return job

    async def result(self, job: Job) -> Any:
        """Its result."""
        await job.refresh(until_complete=talk.RESULT_TIMEOUT_S)
        return job.result

    async def run(self) -> Any:
        """Both in one call."""
        return await queue.apply(echo.__name__, poll_interval=POLL_S, payload=talk.PAYLOAD)


async def main() -> None:
    """The client. A worker's first sweep aborts what it has just begun, so that is waited for."""
    await queue.connect()
    while not await queue.redis.exists(queue.namespace("sweep")):
        await asyncio.sleep(0.05)
    await talk.serve(Client())


if __name__ == "__main__":
    talk.run(main)
