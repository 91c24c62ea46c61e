"""Samples, heartbeats and samplers for tests of the history."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from redis.asyncio import Redis

from sluice.common.contracts import values_of
from sluice.common.contracts.jobs import CountField, JobKeys
from sluice.common.contracts.stats import ONE_SECOND, Resolution, StatsField, StatsKeys
from sluice.common.jobs.partition_clients import PartitionClients
from sluice.common.observability.heartbeats import Heartbeat
from sluice.common.process.host import HostReadings
from sluice.common.redis.partitions import Partitions
from sluice.gateway.observability.history.collector import SampleCollector
from sluice.gateway.observability.history.rings import Rings, SamplerLease
from sluice.gateway.observability.history.sampler import HistorySampler
from sluice.gateway.observability.history.samples import Sample
from tests.support.servers import Backend

#: Unix milliseconds, on a boundary of five minutes.
START = 1_760_000_100_000
KEYS = JobKeys()
STATS = StatsKeys(KEYS.queue)
LEASE = SamplerLease("me", 60_000)


def beat(consumer: str = "w1", **members: Any) -> Heartbeat:
    """A heartbeat."""
    return TypeAdapter(Heartbeat).validate_python({"consumer": consumer, "seen_ms": 1, **members})


def task_histograms(*seconds: int, waits: tuple[int, ...] = ()) -> dict[str, Any]:
    """Histograms of a task with these counts in their first buckets."""
    return {
        "chat": {
            "end_to_end": {"counts": [*seconds, *[0] * (19 - len(seconds))], "sum": 1.0},
            "queue_wait": {"counts": [*waits, *[0] * (19 - len(waits))], "sum": 1.0},
        }
    }


def sample(ts: int, spread: dict[int, int] | None = None, **values: float) -> Sample:
    """A sample with fields by name."""
    known = {StatsField(name): value for name, value in values.items()}
    return Sample(ts, known, {StatsField.END_TO_END: spread or {}})


class History:
    """A history in Redis, with helpers to write and read it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.redis: Redis = backend.client()
        self.rings = Rings(backend.client(), STATS)
        self.sse_clients = 0

    def sampler(self) -> HistorySampler:
        """A sampler of another gateway."""
        client = self._backend.client()
        lines = PartitionClients.on_one_server(client, Partitions.create(KEYS))
        collector = SampleCollector(lines, "workers", lambda: HostReadings(available_bytes=7))
        sampler = HistorySampler(
            client, Rings(client, STATS), collector, lambda: self.sse_clients, lambda: 0.004
        )
        # No expiry on a slow machine.
        sampler.lease = SamplerLease(sampler.lease.token, LEASE.ttl_ms)
        return sampler

    async def put(self, samples: list[Sample], resolution: Resolution = ONE_SECOND) -> None:
        """Write samples to a ring."""
        async with self.redis.pipeline() as pipe:
            for each in samples:
                flat = each.encode()
                fields: Any = dict(zip(flat[::2], flat[1::2]))
                pipe.xadd(STATS.ring(resolution), fields, f"{each.ts}-0")
            await pipe.execute()

    async def stored(self, resolution: Resolution = ONE_SECOND) -> list[Sample]:
        """All samples of a ring."""
        return await self.rings.after(resolution, 0)

    async def add_counts(self, **counts: int) -> None:
        """Increase the job counters."""
        for name, number in counts.items():
            assert name in values_of(CountField)
            await self.redis.hincrby(KEYS.counts, name, number)

    async def store_heartbeat(self, beat: Heartbeat) -> None:
        await self.redis.zadd(KEYS.workers, {beat.consumer: beat.seen_ms})
        await self.redis.set(KEYS.worker(beat.consumer), beat.to_json())

    async def now_ms(self) -> int:
        """Time of Redis."""
        seconds, micros = await self.redis.time()
        return int(seconds * 1000 + micros // 1000)
