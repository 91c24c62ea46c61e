"""streaq: `streaq run bench.peers.systems.streaq:worker`."""

from __future__ import annotations

from typing import Any

from streaq import Worker
from streaq.task import Task

from bench.peers import talk

worker = Worker(redis_url=talk.redis_url(), concurrency=16, anyio_kwargs={"use_uvloop": True})


@worker.task(silent=True)
async def echo(payload: Any) -> Any:
    return payload


class Client:
    """Submits jobs and waits for results."""

    async def submit(self) -> Task[Any]:
        return await echo.enqueue(talk.PAYLOAD)

    async def result(self, job: Task[Any]) -> Any:
        return (await job.result(talk.RESULT_TIMEOUT_S)).result


async def main() -> None:
    async with worker:
        await talk.serve(Client())


if __name__ == "__main__":
    talk.run(main)
