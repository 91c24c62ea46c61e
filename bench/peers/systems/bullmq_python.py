"""BullMQ's package for Python: its Worker, Queue and QueueEvents.

`python -m bench.peers.systems.bullmq_python worker|client`
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from bullmq import Job, Queue, QueueEvents, Worker

from bench.peers import talk

QUEUE = "bench"
OPTIONS = {"connection": talk.redis_url()}


async def echo(job: Job, token: str) -> Any:
    return job.data


class Client:
    """Submits jobs and waits for queue events, as `waitUntilFinished` does on Node."""

    def __init__(self) -> None:
        self._queue = Queue(QUEUE, OPTIONS)
        self._events = QueueEvents(QUEUE, OPTIONS)
        self._ended: dict[str, Any] = {}
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._events.on("completed", self._completed)

    async def submit(self) -> str:
        job = await self._queue.add("echo", talk.PAYLOAD, {})
        return str(job.id)

    async def result(self, job_id: str) -> Any:
        job = await Job.fromId(self._queue, job_id)
        return None if job is None else job.returnvalue

    async def run(self) -> Any:
        """Submits a job and waits for its completion event."""
        self._ended.clear()
        job_id = await self.submit()
        if job_id not in self._ended:
            self._waiting[job_id] = asyncio.get_running_loop().create_future()
            await asyncio.wait_for(self._waiting[job_id], talk.RESULT_TIMEOUT_S)
        return self._ended[job_id]

    def _completed(self, event: dict[str, Any], *_: Any) -> None:
        job_id = str(event["jobId"])
        self._ended[job_id] = event["returnvalue"]
        waiting = self._waiting.pop(job_id, None)
        if waiting is not None:
            waiting.set_result(None)


async def work() -> None:
    Worker(QUEUE, echo, {**OPTIONS, "concurrency": 16})
    await asyncio.Event().wait()


async def main() -> None:
    await talk.serve(Client())


if __name__ == "__main__":
    talk.run(work if sys.argv[1] == "worker" else main)
