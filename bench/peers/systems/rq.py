"""rq: `rq worker --worker-class rq.SimpleWorker`. It does not fork and runs one job at a time."""

from __future__ import annotations

from typing import Any

from redis import Redis
from rq import Queue
from rq.job import Job

from bench.peers import talk
from bench.peers.systems import rq_echo

QUEUE = "bench"


class Client:
    """Submits jobs and waits for results."""

    def __init__(self) -> None:
        self._queue = Queue(QUEUE, connection=Redis.from_url(talk.redis_url()))

    def submit(self) -> Job:
        return self._queue.enqueue(rq_echo.echo, talk.PAYLOAD)

    def result(self, job: Job) -> Any:
        found = job.latest_result(timeout=talk.RESULT_TIMEOUT_S)
        return None if found is None else found.return_value


if __name__ == "__main__":
    talk.serve_plain(Client())
