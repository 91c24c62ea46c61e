"""Celery: `celery -A bench.peers.systems.celery worker --pool prefork|threads -c 16`."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.result import AsyncResult

from bench.peers import talk

app = Celery("bench", broker=talk.redis_url(), backend=talk.redis_url())


@app.task(name="echo")
def echo(payload: Any) -> Any:
    return payload


class Client:
    """Submits jobs and waits for results."""

    def submit(self) -> AsyncResult[Any]:
        return echo.delay(talk.PAYLOAD)

    def result(self, job: AsyncResult[Any]) -> Any:
        return job.get(timeout=talk.RESULT_TIMEOUT_S)


if __name__ == "__main__":
    talk.serve_plain(Client())
