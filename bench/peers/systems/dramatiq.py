"""dramatiq: `dramatiq bench.peers.systems.dramatiq -p 1 -t 16`."""

from __future__ import annotations

from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from bench.peers import talk

broker = RedisBroker(url=talk.redis_url())
broker.add_middleware(Results(backend=RedisBackend(url=talk.redis_url())))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def echo(payload: Any) -> Any:
    return payload


class Client:
    """Submits jobs and waits for results."""

    def submit(self) -> dramatiq.Message[Any]:
        return echo.send(talk.PAYLOAD)

    def result(self, job: dramatiq.Message[Any]) -> Any:
        return job.get_result(block=True, timeout=talk.RESULT_TIMEOUT_S * 1000)


if __name__ == "__main__":
    talk.serve_plain(Client())
