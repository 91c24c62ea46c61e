"""arq: `arq bench.peers.systems.arq.WorkerSettings`. It polls; by default every half second."""

from __future__ import annotations

from typing import Any

import uvloop
from arq import create_pool
from arq.connections import ArqRedis, RedisSettings
from arq.jobs import Job

from bench.peers import talk

#: Fastest useful interval.
POLL_S = 0.001

uvloop.install()


async def echo(context: dict[str, Any], payload: Any) -> Any:
    return payload


class WorkerSettings:
    """Settings for the command line."""

    functions = (echo,)
    redis_settings = RedisSettings.from_dsn(talk.redis_url())
    max_jobs = 16
    poll_delay = POLL_S
    log_results = False


class Client:
    """Submits jobs and waits for results."""

    def __init__(self, pool: ArqRedis) -> None:
        self._pool = pool

    async def submit(self) -> Job:
        job = await self._pool.enqueue_job(echo.__name__, talk.PAYLOAD)
        assert job is not None
        return job

    async def result(self, job: Job) -> Any:
        return await job.result(talk.RESULT_TIMEOUT_S, poll_delay=POLL_S)


async def main() -> None:
    await talk.serve(Client(await create_pool(WorkerSettings.redis_settings)))


if __name__ == "__main__":
    talk.run(main)
