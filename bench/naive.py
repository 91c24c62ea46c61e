"""The naive contract worker: one round trip per command, 16 concurrent jobs.

Shares no code with Sluice on purpose. `python -m bench.naive REDIS_URL`
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from redis.asyncio import Redis

STREAM, GROUP, CONSUMER = "jobs:stream", "workers", "naive"
COUNT = MAX_INFLIGHT = 16
DEFAULT_TTL_S = 86_400


async def emit(redis: Redis, job_id: str, ttl_s: int, kind: str, step: str, data: object) -> None:
    """Appends an event and refreshes its TTL."""
    key = f"job:{job_id}:events"
    now = str(int(time.time() * 1000))
    await redis.xadd(key, {"type": kind, "ts": now, "step": step, "data": json.dumps(data)})
    await redis.expire(key, ttl_s)


async def set_job(redis: Redis, job_id: str, ttl_s: int, **fields: str) -> None:
    """Writes to the job hash and refreshes its TTL."""
    key = f"job:{job_id}"
    fields["updated_ts"] = str(int(time.time() * 1000))
    await redis.hset(key, mapping=fields)  # type: ignore[misc]
    await redis.expire(key, ttl_s)


async def work(redis: Redis, message_id: str, fields: dict[str, str]) -> None:
    """Runs one job, following the contract step by step."""
    started = time.monotonic()
    job_id, task = fields["job_id"], fields["task"]
    ttl_s = int(await redis.hget(f"job:{job_id}", "ttl_s") or DEFAULT_TTL_S)  # type: ignore[misc]
    await set_job(redis, job_id, ttl_s, status="running")
    await emit(redis, job_id, ttl_s, "running", "worker.start", {})
    try:
        payload: Any = json.loads(fields["payload"])
    except ValueError:
        payload = {"_raw": fields["payload"]}
    text = f"echo(task={task}): {payload}"
    await emit(redis, job_id, ttl_s, "message", "worker.echo", {"text": text})
    ms = int((time.monotonic() - started) * 1000)
    result = json.dumps({"text": text, "ms": ms})
    await set_job(redis, job_id, ttl_s, status="done", result=result)
    await emit(redis, job_id, ttl_s, "done", "worker.done", {"ms": ms})
    await redis.xack(STREAM, GROUP, message_id)


async def main(url: str) -> None:
    redis = Redis.from_url(url, decode_responses=True)
    slots = asyncio.Semaphore(MAX_INFLIGHT)
    running: set[asyncio.Task[None]] = set()

    async def run_in_slot(message_id: str, fields: dict[str, str]) -> None:
        async with slots:
            await work(redis, message_id, fields)

    while True:
        streams = await redis.xreadgroup(GROUP, CONSUMER, {STREAM: ">"}, count=COUNT, block=60_000)
        for _, messages in streams or ():
            for message_id, fields in messages:
                task = asyncio.create_task(run_in_slot(message_id, fields))
                running.add(task)
                task.add_done_callback(running.discard)
        while len(running) >= MAX_INFLIGHT:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
