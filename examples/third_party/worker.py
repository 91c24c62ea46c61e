"""A worker that knows only contract.md: runs jobs alongside Sluice's workers.

Run it with the URL of Redis and a consumer name:

    python examples/third_party/worker.py redis://127.0.0.1:6379/0 third-party-1
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import redis

QUEUE, GROUP = "jobs:stream", "workers"
#: A third of Sluice's `LEASE_MS`, in seconds.
RENEW_S = 10.0

Handler = Callable[[dict[str, Any]], Any]


class Worker:
    """Runs one job at a time. `client` decodes replies (`decode_responses=True`)."""

    def __init__(self, client: redis.Redis, consumer: str, handler: Handler) -> None:
        self._client = client
        self._consumer = consumer
        self._handler = handler

    def create_group(self) -> None:
        try:
            self._client.xgroup_create(QUEUE, GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):  # another worker has created it
                raise

    def run_next(self, block_ms: int = 1000) -> None:
        """Run the next job, if one arrives in time."""
        reply: Any = self._client.xreadgroup(
            GROUP, self._consumer, {QUEUE: ">"}, count=1, block=block_ms
        )
        for message_id, message in reply[0][1] if reply else []:
            status = self._client.hget(f"job:{message['job_id']}", "status")
            if status is None:
                continue  # the job has expired: a Sluice worker writes the dead letter
            if status not in ("done", "error", "canceled"):
                self._run(message_id, message)
            self._client.xack(QUEUE, GROUP, message_id)

    def _run(self, message_id: str, message: dict[str, str]) -> None:
        job_id = message["job_id"]
        self._change(job_id, "running", {}, {"status": "running"})
        try:
            with self._renewed(message_id):
                result = self._handler(parse_payload(message["payload"]))
        except Exception as failure:
            error = {"kind": "handler_error", "message": str(failure)}
            fields = {"status": "error", "error": json.dumps(error)}
            self._change(job_id, "error", error, fields)
        else:
            self._change(job_id, "done", {}, {"status": "done", "result": json.dumps(result)})

    def _change(self, job_id: str, type: str, data: dict[str, Any], fields: dict[str, str]) -> None:
        """Write the fields, then the event, and refresh the TTL of both keys."""
        job, events = f"job:{job_id}", f"job:{job_id}:events"
        now = str(int(time.time() * 1000))
        ttl_s: Any = self._client.hget(job, "ttl_s")
        event: dict[Any, Any] = {
            "type": type,
            "ts": now,
            "step": f"third_party.{type}",
            "data": json.dumps(data),
        }
        with self._client.pipeline(transaction=True) as pipe:
            pipe.hset(job, mapping={**fields, "updated_ts": now})
            pipe.xadd(events, event, maxlen=10_000, approximate=True)
            pipe.expire(job, int(ttl_s or 3600))
            pipe.expire(events, int(ttl_s or 3600))
            pipe.execute()

    @contextlib.contextmanager
    def _renewed(self, message_id: str) -> Iterator[None]:
        """Keep the message from becoming idle, so that no Sluice worker takes the job over."""
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(RENEW_S):
                self._client.xclaim(QUEUE, GROUP, self._consumer, 0, [message_id], justid=True)

        thread = threading.Thread(target=renew)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def parse_payload(text: str) -> dict[str, Any]:
    try:
        payload = json.loads(text)
    except ValueError:
        payload = None
    return payload if isinstance(payload, dict) else {"_raw": text}


if __name__ == "__main__":
    url, consumer = sys.argv[1:]
    worker = Worker(
        redis.Redis.from_url(url, decode_responses=True), consumer, lambda payload: payload
    )
    worker.create_group()
    while True:
        worker.run_next()
