"""Samples, heartbeats and keepers for tests of the history."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from redis.asyncio import Redis

from common.contracts import values_of
from common.contracts.jobs import CountField, JobKeys
from common.contracts.stats import ONE_SECOND, Resolution, StatsField, StatsKeys
from common.jobs.partition_clients import PartitionClients
from common.observability.heartbeats import Heartbeat, MachineReading
from common.process.host import HostReadings
from common.redis.partitions import Partitions
from gateway.observability.history.collector import SampleCollector
from gateway.observability.history.rings import Rings, SamplerLease
from gateway.observability.history.sampler import HistorySampler
from gateway.observability.history.samples import Sample
from tests.support.backends import Backend

#: A round number of five minutes.
START = 1_760_000_100_000
KEYS = JobKeys()
STATS = StatsKeys(KEYS.queue)
PLACE = SamplerLease("me", 60_000)


def beat(consumer: str = "w1", **members: Any) -> Heartbeat:
    """A worker's word."""
    return TypeAdapter(Heartbeat).validate_python({"consumer": consumer, "seen_ms": 1, **members})


def tally(*seconds: int, waits: tuple[int, ...] = ()) -> dict[str, Any]:
    """A task's histograms with so many values in their first buckets."""
    return {
        "chat": {
            "end_to_end": {"counts": [*seconds, *[0] * (19 - len(seconds))], "sum": 1.0},
            "queue_wait": {"counts": [*waits, *[0] * (19 - len(waits))], "sum": 1.0},
        }
    }


def sample(ts: int, spread: dict[int, int] | None = None, **values: float) -> Sample:
    """A sample, its fields by name."""
    known = {StatsField(name): value for name, value in values.items()}
    return Sample(ts, known, {StatsField.END_TO_END: spread or {}})


class History:
    """A Redis with a history, and those who keep it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.redis: Redis = backend.client()
        self.rings = Rings(backend.client(), STATS)
        self.sse_clients = 0

    def keeper(self) -> HistorySampler:
        """Another gateway's."""
        client = self._backend.client()
        lines = PartitionClients.on_one_server(client, Partitions.create(KEYS))
        collector = SampleCollector(lines, "workers", lambda: HostReadings(available_bytes=7))
        keeper = HistorySampler(
            client, Rings(client, STATS), collector, lambda: self.sse_clients, lambda: 0.004
        )
        keeper.lease = SamplerLease(keeper.lease.token, PLACE.ttl_ms)  # a slow machine loses it not
        return keeper

    async def put(self, samples: list[Sample], resolution: Resolution = ONE_SECOND) -> None:
        """Samples that are there."""
        async with self.redis.pipeline() as pipe:
            for each in samples:
                flat = each.encode()
                fields: Any = dict(zip(flat[::2], flat[1::2]))
                pipe.xadd(STATS.ring(resolution), fields, f"{each.ts}-0")
            await pipe.execute()

    async def stored(self, resolution: Resolution = ONE_SECOND) -> list[Sample]:
        """Every sample of a ring."""
        return await self.rings.after(resolution, 0)

    async def counted(self, **counts: int) -> None:
        """Jobs that were accepted or ended."""
        for name, number in counts.items():
            assert name in values_of(CountField)
            await self.redis.hincrby(KEYS.counts, name, number)  # type: ignore[misc]

    async def says(self, said: Heartbeat) -> None:
        """A worker speaks."""
        await self.redis.zadd(KEYS.workers, {said.consumer: said.seen_ms})
        await self.redis.set(KEYS.worker(said.consumer), said.to_json())

    async def now_ms(self) -> int:
        """By the clock of Redis."""
        seconds, micros = await self.redis.time()
        return int(seconds * 1000 + micros // 1000)


def box(**readings: Any) -> MachineReading:
    """A worker's machine."""
    return MachineReading(**readings)
