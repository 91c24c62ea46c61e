"""A producer that knows only contract.md: adds a job to Redis without the gateway.

Run it with the URL of Redis, a task and a payload:

    python examples/third_party/producer.py redis://127.0.0.1:6379/0 chat '{"text":"hello"}'
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from typing import Any

import redis


def submit(client: redis.Redis, task: str, payload: dict[str, Any], ttl_s: int = 3600) -> str:
    """Write the record, the first event and, last, the message. Returns the job's id."""
    job_id = str(uuid.uuid4())
    job, events = f"job:{job_id}", f"job:{job_id}:events"
    now = str(int(time.time() * 1000))
    text = json.dumps(payload)
    record = {
        "job_id": job_id,
        "task": task,
        "payload": text,
        "status": "queued",
        "created_ts": now,
        "updated_ts": now,
        "ttl_s": str(ttl_s),
        "result": "",
        "error": "",
    }
    event: dict[Any, Any] = {"type": "queued", "ts": now, "step": "gateway.enqueue", "data": "{}"}
    message: dict[Any, Any] = {"job_id": job_id, "task": task, "payload": text}
    with client.pipeline(transaction=True) as pipe:
        pipe.hset(job, mapping=record)
        pipe.expire(job, ttl_s)
        pipe.xadd(events, event)
        pipe.expire(events, ttl_s)
        pipe.xadd("jobs:stream", message)
        pipe.execute()
    return job_id


if __name__ == "__main__":
    url, task, payload = sys.argv[1:]
    print(submit(redis.Redis.from_url(url), task, json.loads(payload)))
