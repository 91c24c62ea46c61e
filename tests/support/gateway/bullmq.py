"""A gateway with two BullMQ queues, and the steps of a BullMQ worker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sluice.common.contracts.bullmq import BullKeys
from tests.support.gateway.access import bearer
from tests.support.gateway.asgi import JSON, Answer, Exchange
from tests.support.gateway.harness import Gateway

#: One of them with braces, as used to keep its keys on one node of a cluster.
QUEUES = ("video", "{video}")


@dataclass
class QueueApi:
    """Requests about one queue."""

    gateway: Gateway
    queue: str = QUEUES[0]

    @property
    def keys(self) -> BullKeys:
        return BullKeys(self.queue)

    @property
    def path(self) -> str:
        return f"/v1/bullmq/{self.queue.replace('{', '%7B').replace('}', '%7D')}"

    async def post(self, body: object, headers: dict[str, str] | None = None) -> Answer:
        sent = {**JSON, **(headers or {})}
        return await self.gateway.client.send("POST", f"{self.path}/jobs", sent, body)

    async def add(
        self, opts: dict[str, Any] | None = None, data: Any = None, name: str = "render"
    ) -> str:
        """Add a job; returns its id."""
        body = {"name": name, "data": {"n": 1} if data is None else data, "opts": opts or {}}
        answer = await self.post(body)
        assert answer.status == 202, answer
        return answer.json()["id"]

    async def get(self, job_id: str, key: str = "") -> Answer:
        return await self.send("GET", job_id, key)

    async def delete(self, job_id: str, key: str = "") -> Answer:
        return await self.send("DELETE", job_id, key)

    async def send(self, method: str, job_id: str, key: str = "") -> Answer:
        headers = bearer(key) if key else {}
        return await self.gateway.client.send(method, f"{self.path}/jobs/{job_id}", headers)

    async def watch(self, job_id: str = "", **headers: str) -> Exchange:
        suffix = f"/jobs/{job_id}/events" if job_id else "/events"
        return await self.gateway.client.begin("GET", self.path + suffix, headers).start()

    async def fields(self, job_id: str) -> dict[str, str]:
        found = await self.gateway.redis.hgetall(self.keys.job(job_id))
        return {name.decode(): value.decode() for name, value in found.items()}

    async def emit(self, event: str, job_id: str, **fields: str) -> str:
        """An event as BullMQ's scripts write it."""
        entry: Any = {"event": event, "jobId": job_id, **fields}
        written: bytes = await self.gateway.redis.xadd(self.keys.events, entry)
        return written.decode()

    async def begin(self, job_id: str) -> None:
        """Begin the job as a worker does."""
        redis, keys = self.gateway.redis, self.keys
        await redis.lrem(keys.key("wait"), 0, job_id)
        await redis.lpush(keys.key("active"), job_id)
        await redis.set(keys.lock(job_id), "token", px=30_000)
        started = {"processedOn": "1760000000000", "ats": "1", "pb": "node-1"}
        await redis.hset(keys.job(job_id), mapping=started)
        await self.emit("active", job_id, prev="waiting")

    async def complete(self, job_id: str, value: object) -> str:
        """Complete the job as a worker does."""
        redis, keys = self.gateway.redis, self.keys
        await redis.lrem(keys.key("active"), 0, job_id)
        await redis.delete(keys.lock(job_id))
        await redis.zadd(keys.key("completed"), {job_id: 1760000000001})
        done = {"returnvalue": json.dumps(value), "finishedOn": "1760000000001", "atm": "1"}
        await redis.hset(keys.job(job_id), mapping=done)
        encoded = json.dumps(value)
        return await self.emit("completed", job_id, returnvalue=encoded, prev="active")
