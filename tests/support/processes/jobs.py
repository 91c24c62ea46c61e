"""Jobs in Redis, written and read with the commands of the contract."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import redis

from sluice.common.contracts.jobs import TERMINAL, WORKER_GROUP, JobKeys
from tests.support.processes.worker import TIMEOUT_S, wait_until

KEYS = JobKeys()
QUEUE, GROUP = KEYS.queue, WORKER_GROUP


def post(
    client: redis.Redis,
    payload: str = '{"text":"hello"}',
    task: str = "chat",
    *,
    keys: JobKeys = KEYS,
    job_id: str = "",
    max_attempts: int = 0,
) -> str:
    job_id, now = job_id or str(uuid.uuid4()), str(int(time.time() * 1000))
    fields: dict[Any, Any] = {"job_id": job_id, "task": task, "payload": payload}
    rest = {"created_ts": now, "updated_ts": now, "ttl_s": "600", "result": "", "error": ""}
    client.hset(keys.job(job_id), mapping={**fields, "status": "queued", **rest})
    if max_attempts:
        client.hset(keys.lease(job_id), mapping={"attempt": 0, "max_attempts": max_attempts})
    event: Any = {"type": "queued", "ts": now, "step": "gateway.enqueue", "data": "{}"}
    client.xadd(keys.events(job_id), event)
    client.xadd(keys.queue, fields)
    return job_id


def status(client: redis.Redis, job_id: str, keys: JobKeys = KEYS) -> Any:
    return client.hget(keys.job(job_id), "status")


def statuses(client: redis.Redis, job_ids: list[str]) -> set[str]:
    """The statuses of these jobs; `lost` for a job that does not exist."""
    pipe = client.pipeline(transaction=False)
    for job_id in job_ids:
        pipe.hget(KEYS.job(job_id), "status")
    return {"lost" if each is None else each.decode() for each in pipe.execute()}


def terminal_events(client: redis.Redis, job_id: str) -> list[str]:
    """The types of a job's terminal events; they must be last."""
    kinds = [kind.decode() for kind in types(client, job_id)]
    ends = [kind for kind in kinds if kind in TERMINAL]
    return ends if ends == kinds[-len(ends) :] else [*ends, "something after it"]


def check_history(client: redis.Redis, job_ids: list[str], timeout_s: float = 90.0) -> None:
    """Every acknowledged job ends exactly once, and nothing is left over."""
    assert len(set(job_ids)) == len(job_ids)
    wait_until(lambda: statuses(client, job_ids) <= {*TERMINAL, "lost"}, timeout_s)
    assert statuses(client, job_ids) == {"done"}
    for job_id in job_ids:
        assert terminal_events(client, job_id) == ["done"], job_id
    wait_until(lambda: pending(client) == 0, timeout_s)


def field(client: redis.Redis, job_id: str, name: str) -> Any:
    found: Any = client.hget(KEYS.job(job_id), name)
    return json.loads(found or "null")


def wait_for(
    client: redis.Redis, jobs: str | list[str], *statuses: bytes, timeout_s: float = TIMEOUT_S
) -> None:
    """Waits until these jobs have one of these statuses; `done` if none is given."""
    each = [jobs] if isinstance(jobs, str) else jobs
    wanted = statuses or (b"done",)
    wait_until(lambda: all(status(client, job_id) in wanted for job_id in each), timeout_s)


def events(client: redis.Redis, job_id: str, kind: bytes, keys: JobKeys = KEYS) -> list[Any]:
    """The events of one type, with the time (of Redis) as `ts`."""
    entries: Any = client.xrange(keys.events(job_id))
    return [
        {**json.loads(fields[b"data"]), "ts": int(fields[b"ts"])}
        for _, fields in entries
        if fields[b"type"] == kind
    ]


def times(client: redis.Redis, job_id: str, kind: bytes) -> list[int]:
    return [event["ts"] for event in events(client, job_id, kind)]


def attempts(client: redis.Redis, job_id: str) -> list[int]:
    return [event["attempt"] for event in events(client, job_id, b"running")]


def types(client: redis.Redis, job_id: str, keys: JobKeys = KEYS) -> list[bytes]:
    entries: Any = client.xrange(keys.events(job_id))
    return [fields[b"type"] for _, fields in entries]


def pending(client: redis.Redis, keys: JobKeys = KEYS) -> int:
    found: Any = client.xpending(keys.queue, GROUP)
    return int(found["pending"])
