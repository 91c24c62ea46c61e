"""Queue facts of each partition, and their sums over all partitions.

Callers query the home partition themselves, in one pipeline with their other commands. This module
queries the other partitions concurrently. A partition that does not answer in time has unknown
values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from sluice.common import codec
from sluice.common.aio import wait_for
from sluice.common.contracts.queue import Lane
from sluice.common.jobs.partition_clients import PartitionClient, PartitionClients
from sluice.common.jobs.queue_stats import (
    COUNT_FIELDS,
    QUERY_COUNT,
    JobCounts,
    QueueReader,
    QueueReading,
    combine_readings,
)
from sluice.common.redis.connection import TRANSIENT_ERRORS, execute_pipeline

#: Number of commands that `add_queries` adds before those of the queue reader.
_OWN: Final = 3


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """Facts read from one partition; None for unknown values."""

    number: int
    queue: QueueReading = field(default_factory=QueueReading)
    #: Last delivered id; later messages are waiting.
    delivered: str | None = None
    scheduled: int | None = None
    dead_letters: int | None = None
    counts: JobCounts | None = None
    #: Number of the first partition that uses the same client.
    server: int = 0
    #: Reply to INFO, only for the first partition of a client other than that of the home
    #: partition.
    info: dict[str, Any] = field(default_factory=dict)
    #: Reason if it did not answer.
    trouble: str = ""
    #: The queue by lane, if there are lanes other than the normal one.
    lanes: dict[str, QueueReading] = field(default_factory=dict)

    @property
    def backlog(self) -> int | None:
        """Number of waiting and running messages; None if unknown."""
        queue = self.queue.with_estimate()
        if queue.waiting is None or queue.pending is None:
            return None
        return queue.waiting + queue.pending


class PartitionQuery:
    """Adds the commands for one partition to a shared pipeline and parses the replies."""

    def __init__(self, line: PartitionClient, group: str) -> None:
        self._line = line
        self._reader = QueueReader(line.keys.queue, group)
        self._lanes = [
            (lane, QueueReader(line.keys.for_lane(lane).stream, group)) for lane in line.lanes
        ]

    def add_queries(self, pipe: Pipeline) -> None:
        keys = self._line.keys
        pipe.zcard(keys.scheduled)
        pipe.xlen(keys.dead_letters)
        pipe.hmget(keys.counts, list(COUNT_FIELDS))
        self._reader.add_queries(pipe)
        for _, reader in self._lanes:
            reader.add_queries(pipe)

    def parse_replies(
        self, replies: Sequence[Any], server: int = 0, info: Any = None
    ) -> PartitionFacts:
        scheduled, dead, counts = replies[:_OWN]
        queue = self._reader.parse_replies(replies[_OWN : _OWN + QUERY_COUNT])
        lanes: dict[str, QueueReading] = {}
        for at, (lane, reader) in enumerate(self._lanes, 1):
            first = _OWN + at * QUERY_COUNT
            lanes[lane] = reader.parse_replies(replies[first : first + QUERY_COUNT])
        if lanes:
            lanes[Lane.NORMAL.value] = queue
            queue = _merge_readings(list(lanes.values()))
        return PartitionFacts(
            self._line.number,
            queue,
            self._reader.last_delivered_id,
            _number(scheduled),
            _number(dead),
            None if isinstance(counts, Exception) else JobCounts.from_values(counts),
            server,
            info if isinstance(info, dict) else {},
            lanes=lanes,
        )


async def read_other_partitions(
    lines: PartitionClients, group: str, timeout_s: float
) -> list[PartitionFacts]:
    if len(lines) == 1:
        return []
    first: dict[Redis, int] = {}
    for line in lines:
        first.setdefault(line.client, line.number)
    others = lines.clients[1:]
    return await asyncio.gather(
        *(_read_partition(line, group, timeout_s, first[line.client]) for line in others)
    )


async def _read_partition(
    line: PartitionClient, group: str, timeout_s: float, server: int
) -> PartitionFacts:
    query = PartitionQuery(line, group)
    info = server == line.number

    async def execute() -> list[Any]:
        async with line.client.pipeline(transaction=False) as pipe:
            query.add_queries(pipe)
            if info:
                pipe.info()
            return await execute_pipeline(pipe)

    try:
        replies = await wait_for(timeout_s, execute())
    except asyncio.TimeoutError:
        return PartitionFacts(line.number, trouble=f"no answer within {timeout_s:g} s")
    except (RedisError, *TRANSIENT_ERRORS) as error:
        return PartitionFacts(line.number, trouble=str(error) or type(error).__name__)
    if info:
        return query.parse_replies(replies[:-1], server, replies[-1])
    return query.parse_replies(replies, server)


def merge_queues(facts: Sequence[PartitionFacts]) -> QueueReading:
    """The queues of all partitions, combined."""
    return _merge_readings([each.queue for each in facts])


def merge_lanes(facts: Sequence[PartitionFacts]) -> dict[str, QueueReading]:
    """The lanes of all partitions, combined; unknown if a partition did not answer."""
    names = {lane: None for each in facts for lane in each.lanes}
    return {
        lane: _merge_readings([each.lanes.get(lane, QueueReading()) for each in facts])
        for lane in names
    }


def _merge_readings(readings: list[QueueReading]) -> QueueReading:
    if len(readings) > 1:  # a partition without jobs has no stream and uses no memory
        known = [reading.stream_bytes is not None or reading.length != 0 for reading in readings]
        readings = [
            reading if is_known else replace(reading, stream_bytes=0)
            for reading, is_known in zip(readings, known)
        ]
    return combine_readings(readings)


def merge_counts(counts: Sequence[JobCounts | None]) -> JobCounts | None:
    """Sum over all partitions; None if one is unknown."""
    known = [each for each in counts if each is not None]
    if len(known) < len(counts):
        return None
    names = [each.name for each in fields(JobCounts)]
    return JobCounts(*(sum(getattr(each, name) for each in known) for name in names))


def total(numbers: Sequence[int | None]) -> int | None:
    """Sum of the numbers; None if one is unknown."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _number(reply: Any) -> int | None:
    if isinstance(reply, Exception):
        return None
    return codec.parse_int(reply) if isinstance(reply, bytes) else int(reply or 0)
