"""A gateway and workers as real processes on a Redis Cluster, and clients that create load."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import httpx

from sluice.common.contracts.jobs import TERMINAL, JobKeys
from sluice.common.redis.partitions import Partitions
from tests.support.processes.base import Processes, Spawn
from tests.support.processes.retrying_clients import RetryingClients
from tests.support.topologies import Node, RedisCluster

PARTITIONS = Partitions.create(JobKeys(), 4)
#: Pause between two jobs of a client, because the machine runs many servers.
PAUSE_S = 0.02
#: Time limit for recovery after a fault, on a busy machine.
RECOVERY_S = 60.0
ENDED_S = 120.0

#: Jobs that take a given time, and fail until a file exists.
HANDLERS = """
import asyncio
from pathlib import Path

from sluice.worker.errors import TransientError

HERE = Path(__file__).parent

async def handle(context, payload):
    if payload.get("mend") and not (HERE / payload["mend"]).exists():
        raise TransientError("not mended yet")
    await context.emit("message", {"text": "at work"})
    await asyncio.sleep(payload.get("ms", 0) / 1000)
    return {"attempt": context.attempt}

def register(registry):
    for task in ("chat", "plan"):
        registry.add(task, handle)
"""


class ClusterProcesses(Processes):
    """A gateway and any number of workers."""

    WORKER: ClassVar[dict[str, object]] = {
        "lease_ms": 1500, "block_ms": 200, "max_inflight": 8, "max_attempts": 1000,
        "retry_backoff_s": 0.05, "worker_handlers": "cluster_handlers",
        "workflow_reconcile_s": 0.3, "image_reconcile_s": 0.3,
    }  # fmt: skip
    client: httpx.AsyncClient

    def __init__(
        self, servers: RedisCluster, spawn: Spawn, directory: Path, **settings: str
    ) -> None:
        self.servers = servers
        (directory / "cluster_handlers.py").write_text(HANDLERS)
        usual = {"queue_partitions": str(PARTITIONS.count), "backpressure_max_backlog": "50000"}
        super().__init__(servers.url, spawn, directory, **usual, **settings)

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        async with self.gateway.http_async() as client:
            self.client = client
            yield

    # -- over HTTP -------------------------------------------------------------------------

    async def post(self, ms: int = 0, **more: Any) -> str:
        payload = {"ms": ms, **more.pop("payload", {})}
        body = {"task": "chat", "payload": payload, **more}
        answer = await self.client.post("/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job_id"])

    async def get(self, path: str) -> Any:
        answer = await self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def status(self, job_id: str) -> str:
        return str((await self.get(f"/v1/jobs/{job_id}"))["status"])

    # -- contents of Redis ---------------------------------------------------------------------

    def slot(self, number: int) -> int:
        return self.servers.slot_of(PARTITIONS.keys[number].queue)

    def owner(self, number: int) -> Node:
        return self.servers.owner(self.slot(number))

    def read(self, job_id: str, clients: dict[int, Any]) -> tuple[str, list[str]]:
        """Status and terminal events of a job; the terminal events must be last."""
        number = PARTITIONS.number(job_id)
        keys, client = PARTITIONS.keys[number], clients[number]
        status = client.hget(keys.job(job_id), "status")
        kinds = [fields[b"type"].decode() for _, fields in client.xrange(keys.events(job_id))]
        ends = [kind for kind in kinds if kind in TERMINAL]
        if ends and kinds[-1] not in TERMINAL:
            ends.append("something after it")
        return "lost" if status is None else status.decode(), ends

    async def check_history(self, job_ids: list[str]) -> None:
        """Every acknowledged job ends exactly once, and nothing is left over."""
        assert len(set(job_ids)) == len(job_ids)
        clients = {number: self.owner(number).client for number in range(PARTITIONS.count)}
        left = set(job_ids)
        deadline = time.monotonic() + ENDED_S
        while left:
            found = {job_id: self.read(job_id, clients) for job_id in left}
            left = {job_id for job_id, (status, _) in found.items() if status not in TERMINAL}
            states = Counter(status for status, _ in found.values())
            assert not states["lost"], f"lost: {[j for j in left if found[j][0] == 'lost']}"
            assert time.monotonic() < deadline, f"not ended: {states}, {sorted(left)[:5]}"
            await asyncio.sleep(0.1)
        ended = {job_id: self.read(job_id, clients) for job_id in job_ids}
        wrong = {j: state for j, state in ended.items() if state != ("done", ["done"])}
        assert not wrong, wrong
        for number, keys in enumerate(PARTITIONS.keys):
            pending = clients[number].xpending(keys.queue, "workers")["pending"]
            assert pending == 0, f"partition {number} has {pending} messages pending"


class Load(RetryingClients):
    """Posts jobs repeatedly; measures the time until each partition accepts jobs again."""

    def __init__(self, processes: ClusterProcesses, name: str) -> None:
        super().__init__(processes.client, name, {"ms": 20}, PAUSE_S, RECOVERY_S)

    async def recovered(self, since: float) -> float:  # type: ignore[override]
        """Seconds until every partition has accepted a job that was sent after `since`."""
        deadline = time.monotonic() + RECOVERY_S
        while True:
            firsts: dict[int, float] = {}
            for each in self.accepted:
                if each.sent > since:
                    firsts.setdefault(PARTITIONS.number(each.job_id), each.sent)
            if len(firsts) == PARTITIONS.count:
                return max(firsts.values()) - since
            assert time.monotonic() < deadline, f"accepted in {set(firsts)}: {self.refused}"
            await asyncio.sleep(0.02)
