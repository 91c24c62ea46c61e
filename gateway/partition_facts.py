"""What each partition tells of its queue, and what that comes to together.

The home partition is asked with all that there is one of, in one round trip, by whoever wants to
know; the others are asked here, at the same time. One that does not answer in time is known by
name, and what it alone knows is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from common import codec
from common.connection import TRANSIENT_ERRORS
from common.contracts.lanes import Lane
from common.counts import COUNT_FIELDS, JobCounts
from common.partition_lines import Line, Lines
from common.patience import within
from common.pipelines import replies_of
from common.queue_reading import QUESTIONS, QueueReader, QueueReading, all_together

#: Commands that `ask` adds before the queue's own.
_OWN: Final = 3


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One look at a partition; None for what it did not tell."""

    number: int
    queue: QueueReading = field(default_factory=QueueReading)
    #: After which id its messages wait.
    delivered: str | None = None
    scheduled: int | None = None
    dead_letters: int | None = None
    counts: JobCounts | None = None
    #: The first partition that is reached by the same client, and what INFO says of its server;
    #: that of the home's is asked for by whoever asks the home.
    server: int = 0
    info: dict[str, Any] = field(default_factory=dict)
    #: Why it did not answer.
    trouble: str = ""
    #: Each lane's part of its queue, where there are any beside the normal one.
    lanes: dict[str, QueueReading] = field(default_factory=dict)

    @property
    def backlog(self) -> int | None:
        """What waits or runs; None for unknown."""
        queue = self.queue.estimated()
        if queue.waiting is None or queue.pending is None:
            return None
        return queue.waiting + queue.pending


class PartitionQuestion:
    """Asks one partition in a pipeline that others may use too."""

    def __init__(self, line: Line, group: str) -> None:
        self._line = line
        self._reader = QueueReader(line.keys.queue, group)
        self._lanes = [
            (lane, QueueReader(line.keys.in_lane(lane).stream, group)) for lane in line.lanes
        ]

    def ask(self, pipe: Pipeline) -> None:
        """Add the questions."""
        keys = self._line.keys
        pipe.zcard(keys.scheduled)
        pipe.xlen(keys.dead_letters)
        pipe.hmget(keys.counts, list(COUNT_FIELDS))
        self._reader.ask(pipe)
        for _, reader in self._lanes:
            reader.ask(pipe)

    def answer(self, replies: Sequence[Any], server: int = 0, info: Any = None) -> PartitionFacts:
        """What the replies say."""
        scheduled, dead, counts = replies[:_OWN]
        queue = self._reader.answer(replies[_OWN : _OWN + QUESTIONS])
        lanes: dict[str, QueueReading] = {}
        for at, (lane, reader) in enumerate(self._lanes, 1):
            first = _OWN + at * QUESTIONS
            lanes[lane] = reader.answer(replies[first : first + QUESTIONS])
        if lanes:
            lanes[Lane.NORMAL.value] = queue
            queue = _joined(list(lanes.values()))
        return PartitionFacts(
            self._line.number,
            queue,
            self._reader.delivered,
            _number(scheduled),
            _number(dead),
            None if isinstance(counts, Exception) else JobCounts.from_values(counts),
            server,
            info if isinstance(info, dict) else {},
            lanes=lanes,
        )


async def others(lines: Lines, group: str, timeout_s: float) -> list[PartitionFacts]:
    """Every partition but the home."""
    if len(lines) == 1:
        return []
    first: dict[Redis, int] = {}
    for line in lines:
        first.setdefault(line.client, line.number)
    asked = lines.each[1:]
    return await asyncio.gather(
        *(_of(line, group, timeout_s, first[line.client]) for line in asked)
    )


async def _of(line: Line, group: str, timeout_s: float, server: int) -> PartitionFacts:
    question = PartitionQuestion(line, group)
    info = server == line.number

    async def ask() -> list[Any]:
        async with line.client.pipeline(transaction=False) as pipe:
            question.ask(pipe)
            if info:
                pipe.info()
            return await replies_of(pipe)

    try:
        replies = await within(timeout_s, ask())
    except asyncio.TimeoutError:
        return PartitionFacts(line.number, trouble=f"no answer within {timeout_s:g} s")
    except (RedisError, *TRANSIENT_ERRORS) as error:
        return PartitionFacts(line.number, trouble=str(error) or type(error).__name__)
    if info:
        return question.answer(replies[:-1], server, replies[-1])
    return question.answer(replies, server)


def joined_queue(facts: Sequence[PartitionFacts]) -> QueueReading:
    """The queues of all partitions as one."""
    return _joined([each.queue for each in facts])


def joined_lanes(facts: Sequence[PartitionFacts]) -> dict[str, QueueReading]:
    """Each lane of all partitions; those that did not answer make it unknown."""
    names = {lane: None for each in facts for lane in each.lanes}
    return {
        lane: _joined([each.lanes.get(lane, QueueReading()) for each in facts]) for lane in names
    }


def _joined(readings: list[QueueReading]) -> QueueReading:
    if len(readings) > 1:  # one without a job yet has no stream, and takes no memory
        known = [reading.stream_bytes is not None or reading.length != 0 for reading in readings]
        readings = [
            reading if told else replace(reading, stream_bytes=0)
            for reading, told in zip(readings, known)
        ]
    return all_together(readings)


def joined_counts(counts: Sequence[JobCounts | None]) -> JobCounts | None:
    """Of all partitions; None where one of them is not known."""
    known = [each for each in counts if each is not None]
    if len(known) < len(counts):
        return None
    names = [each.name for each in fields(JobCounts)]
    return JobCounts(*(sum(getattr(each, name) for each in known) for name in names))


def total(numbers: Sequence[int | None]) -> int | None:
    """Their sum; None where one is not known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _number(reply: Any) -> int | None:
    if isinstance(reply, Exception):
        return None
    return codec.integer(reply) if isinstance(reply, bytes) else int(reply or 0)
