"""taskiq with its list broker on Redis: `taskiq worker bench.peers.systems.taskiq:broker`.

The list broker is its fastest; a crash of the worker loses the jobs that it has taken.
"""

from __future__ import annotations

from typing import Any

from taskiq import AsyncTaskiqTask
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

from bench.peers import talk

#: It polls for results; by default every 200 ms.
POLL_S = 0.001
RESULTS_KEPT_S = 3600

backend: RedisAsyncResultBackend[Any] = RedisAsyncResultBackend(
    talk.redis_url(), result_ex_time=RESULTS_KEPT_S
)
broker = ListQueueBroker(talk.redis_url()).with_result_backend(backend)


@broker.task("echo")
async def echo(payload: Any) -> Any:
    return payload


class Client:
    """Submits jobs and waits for results."""

    async def submit(self) -> AsyncTaskiqTask[Any]:
        return await echo.kiq(talk.PAYLOAD)

    async def result(self, job: AsyncTaskiqTask[Any]) -> Any:
        found = await job.wait_result(check_interval=POLL_S, timeout=talk.RESULT_TIMEOUT_S)
        return found.return_value


async def main() -> None:
    await broker.startup()
    await talk.serve(Client())


if __name__ == "__main__":
    talk.run(main)
