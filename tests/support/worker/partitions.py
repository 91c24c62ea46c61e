"""A whole worker for several partitions, inside the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.store import WorkerIdentity
from sluice.common.redis.addresses import is_cluster, url_for_tag
from sluice.common.redis.partitions import Partitions
from sluice.worker.queue.connections import Connections
from sluice.worker.queue.consumers import (
    Capacity,
    QueueConsumer,
    QueueConsumers,
    SharedCapacity,
    build_listeners,
)
from tests.support.servers import Backend
from tests.support.store.jobs import StoreHarness
from tests.support.waiting import eventually
from tests.support.worker.harness import (
    ENDS,
    WorkerLoops,
    connections_to,
    limits_of,
    quick_terms,
    registry_of,
)


class PartitionedWorker(WorkerLoops):
    """One worker for several partitions, and a store harness for each of them."""

    def __init__(
        self,
        backends: Sequence[Backend],
        handler: Callable[..., Any],
        *,
        worker: WorkerIdentity,
        max_inflight: int = 4,
        block_ms: int = 100,
        task_limits: dict[str, int] | None = None,
        connections: dict[int, Connections] | None = None,
        keys: Sequence[JobKeys] | None = None,
        weights: Sequence[int] | None = None,
        lanes: Sequence[str] = (),
    ) -> None:
        named = keys or Partitions.create(JobKeys(), len(backends)).keys
        self.stores = [
            StoreHarness(backend, each, worker) for backend, each in zip(backends, named)
        ]
        shared = SharedCapacity(
            Capacity(max_inflight, 16, block_ms, limits_of(task_limits)), len(backends)
        )
        registry = registry_of(handler, "chat", "embed")
        consumers = [
            QueueConsumer(
                (connections or {}).get(number) or connections_to(harness.backend),
                harness.keys,
                worker,
                registry,
                shared,
                quick_terms(worker),
                (weights or [1] * len(backends))[number],
                lanes,
            )
            for number, harness in enumerate(self.stores)
        ]
        super().__init__(QueueConsumers(consumers))
        backend_of = {harness.keys: harness.backend for harness in self.stores}
        self.listeners = build_listeners(
            self.consumers,
            lambda keys, on_message: backend_of[keys].wire(on_message=on_message),
            lambda: None,
        )
        self.slots = shared.slots

    def start(self) -> None:
        self.consumers.start()
        listening = (listener.run() for listener in self.listeners)
        self.start_loops(
            self.consumers.read(),
            self.consumers.take_loops(),
            [*self.consumers.maintenance_loops(), *listening],
        )

    async def close(self) -> None:
        await self.end_loops(10)
        for listener in self.listeners:
            await listener.close()
        await self.consumers.close()
        for harness in self.stores:
            await harness.close()

    async def post(self, number: int, count: int = 1, **changes: object) -> list[str]:
        return await self.stores[number].post(count, **changes)

    async def ended(self, number: int, jobs: Sequence[str]) -> int:
        harness = self.stores[number]
        async with harness.client.pipeline(transaction=False) as pipe:
            for job_id in jobs:
                pipe.hget(harness.keys.job(job_id), "status")
            return sum(status in ENDS for status in await pipe.execute())

    async def all_ended(self, number: int, jobs: Sequence[str], timeout_s: float = 30.0) -> None:

        async def over() -> bool:
            return await self.ended(number, jobs) == len(jobs)

        await eventually(over, timeout_s)

    async def pending_none(self) -> bool:
        return await self.pending() == 0

    async def pending(self) -> int:
        """How many messages are pending, over all partitions."""
        return sum([await harness.pending() for harness in self.stores])


def partition_backends(backend: Backend, count: int) -> list[Backend]:
    """The backend of each partition: on a Cluster different nodes, otherwise the same server."""
    if backend.url is None or not is_cluster(backend.url):
        return [backend] * count
    tags = [keys.tag for keys in Partitions.create(JobKeys(), count).keys]
    return [Backend(backend.name, url_for_tag(backend.url, tag)) for tag in tags]


class FaultyConnection:
    """A connection whose commands fail, or have no reply, while it is not open."""

    ready = False

    def __init__(self, wire: Any = None, *, hangs: bool) -> None:
        self._wire = wire
        self._hangs = hangs
        self.open = False
        self.asked = 0
        self.swallowed: list[asyncio.Future[Any]] = []

    def send(self, args: Any, on_reply: Any) -> None:
        raise AssertionError("never ready")

    async def execute_command(self, *args: Any) -> Any:
        self.asked += 1
        if not self.open:
            if not self._hangs:
                raise RedisConnectionError("away")
            lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.swallowed.append(lost)
            await lost
        return await self._wire.execute_command(*args)

    def fail(self) -> None:
        """The connection is closed with an error."""
        lost, self.swallowed = self.swallowed, []
        for each in lost:
            if not each.done():
                each.set_exception(RedisConnectionError("lost"))

    async def aclose(self) -> None:
        if self._wire is not None:
            await self._wire.aclose()
