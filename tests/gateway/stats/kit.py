"""Samples, heartbeats and keepers for tests of the history."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

from common.contracts.jobs import CountField, JobKeys
from common.contracts.stats import SECONDS, Resolution, StatsField, StatsKeys
from common.heartbeats import Box, Heartbeat
from common.host import Readings
from common.partition_lines import Lines
from common.partitions import Partitions
from gateway.stats.collecting import Collector
from gateway.stats.keeper import StatsKeeper
from gateway.stats.rings import Place, Rings
from gateway.stats.sample import Sample
from tests.backends import Backend

#: A round number of five minutes.
START = 1_760_000_100_000
KEYS = JobKeys()
STATS = StatsKeys(KEYS.queue)
PLACE = Place("me", 60_000)


def beat(consumer: str = "w1", **members: Any) -> Heartbeat:
    """A worker's word."""
    return Heartbeat.model_validate({"consumer": consumer, "seen_ms": 1, **members})


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

    def keeper(self) -> StatsKeeper:
        """Another gateway's."""
        client = self._backend.client()
        lines = Lines.of_one(client, Partitions.of(KEYS))
        collector = Collector(lines, "workers", lambda: Readings(available_bytes=7))
        keeper = StatsKeeper(
            client, Rings(client, STATS), collector, lambda: self.sse_clients, lambda: 0.004
        )
        keeper.place = Place(keeper.place.token, PLACE.hold_ms)  # a slow machine loses it not
        return keeper

    async def put(self, samples: list[Sample], resolution: Resolution = SECONDS) -> None:
        """Samples that are there."""
        async with self.redis.pipeline() as pipe:
            for each in samples:
                flat = each.encode()
                fields: Any = dict(zip(flat[::2], flat[1::2]))
                pipe.xadd(STATS.ring(resolution), fields, f"{each.ts}-0")
            await pipe.execute()

    async def stored(self, resolution: Resolution = SECONDS) -> list[Sample]:
        """Every sample of a ring."""
        return await self.rings.after(resolution, 0)

    async def counted(self, **counts: int) -> None:
        """Jobs that were accepted or ended."""
        for name, number in counts.items():
            await self.redis.hincrby(KEYS.counts, CountField(name).value, number)  # type: ignore[misc]

    async def says(self, said: Heartbeat) -> None:
        """A worker speaks."""
        await self.redis.zadd(KEYS.workers, {said.consumer: said.seen_ms})
        await self.redis.set(KEYS.worker(said.consumer), said.to_json())

    async def now_ms(self) -> int:
        """By the clock of Redis."""
        seconds, micros = await self.redis.time()
        return int(seconds * 1000 + micros // 1000)


def box(**readings: Any) -> dict[str, Any]:
    """A worker's machine."""
    return Box(**readings).model_dump()
