"""Statistics of the queue: length, waiting and pending messages, age of the oldest.

The counts take one short round trip, however long the queue is. The age takes another, which reads
a message; a gateway is not permitted to do that. An ACL may refuse each query, and a key may hold
another type: a value that cannot be read is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from sluice.common import codec
from sluice.common.contracts import values_of
from sluice.common.contracts.jobs import CountField

#: Fields of the counts hash for HMGET, in the order of `JobCounts`.
COUNT_FIELDS: Final = values_of(CountField)


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Totals over all gateways and workers; zeros before the first job."""

    accepted: int = 0
    done: int = 0
    error: int = 0
    canceled: int = 0

    @property
    def ended(self) -> int:
        """Jobs that ended, with any status."""
        return self.done + self.error + self.canceled

    @classmethod
    def from_values(cls, values: Sequence[bytes | None]) -> JobCounts:
        """From HMGET of `COUNT_FIELDS`; an invalid number counts as 0."""
        return cls(*(codec.parse_int(value or b"0") for value in values))


#: Pending messages, oldest first, among which the longest idle time is determined.
MOST_PENDING = 100
_BEGINNING = "0-0"
#: Number of commands that `QueueReader.add_queries` adds.
QUERY_COUNT = 4


def _number_or_none(description: str) -> int | None:
    """A field with constraints that pydantic checks when a gateway reads a heartbeat."""
    found: int | None = field(default=None, metadata={"ge": 0, "description": description})
    return found


@dataclass(frozen=True)
class QueueReading:
    """The state of the queue; null for values that could not be read."""

    length: int | None = _number_or_none("Number of entries in the stream.")
    waiting: int | None = _number_or_none("Messages not delivered yet.")
    pending: int | None = _number_or_none("Messages delivered to workers and not acknowledged.")
    oldest_ms: int | None = _number_or_none(
        "When the oldest waiting message was queued, Unix milliseconds; 0 if there is none."
    )
    idle_ms: int | None = _number_or_none("Longest idle time of a pending message, milliseconds.")
    stream_bytes: int | None = _number_or_none("Memory used by the stream, bytes.")

    def with_estimate(self) -> QueueReading:
        """Estimates `waiting` if Redis does not report it.

        The estimate may include a few entries that have ended and were not trimmed yet.
        """
        if self.waiting is not None or self.length is None or self.pending is None:
            return self
        return replace(self, waiting=max(0, self.length - self.pending))


class QueueReader:
    """Reads in two steps, so that the queries can share a pipeline with others."""

    def __init__(self, queue: str, group: str) -> None:
        self._queue = queue
        self._group = group
        #: The id after which messages are waiting; None if the group could not be read.
        self.last_delivered_id: str | None = None

    async def read(self, client: Redis) -> QueueReading:
        """Read everything; raises errors of Redis."""
        reading = await self.count(client)
        if self.last_delivered_id is None:
            return reading
        async with client.pipeline(transaction=False) as pipe:
            self.add_oldest_query(pipe)
            [entries] = await pipe.execute(raise_on_error=False)
        return self.with_oldest(reading, entries)

    async def count(self, client: Redis) -> QueueReading:
        """Read everything but the age of the oldest message, which not every user may read."""
        async with client.pipeline(transaction=False) as pipe:
            self.add_queries(pipe)
            return self.parse_replies(await pipe.execute(raise_on_error=False))

    def add_queries(self, pipe: Pipeline) -> None:
        """Add the queries that do not read messages."""
        pipe.xlen(self._queue)
        pipe.xinfo_groups(self._queue)
        pipe.xpending_range(self._queue, self._group, "-", "+", MOST_PENDING)
        pipe.memory_usage(self._queue)

    def parse_replies(self, replies: Sequence[Any]) -> QueueReading:
        length, groups, pending, stream_bytes = replies
        if isinstance(length, Exception):
            return QueueReading()
        known = {"length": length, "stream_bytes": _number(stream_bytes)}
        if isinstance(groups, Exception):
            if not str(groups).startswith(("no such key", "ERR no such key")):
                return QueueReading(**known)
            groups = []
        own = [info for info in groups if codec.decode_text(info["name"]) == self._group]
        if not own:  # nothing was delivered yet
            self.last_delivered_id = _BEGINNING
            return QueueReading(**known, waiting=length, pending=0, idle_ms=0)
        self.last_delivered_id = codec.decode_text(own[0]["last-delivered-id"])
        delivered = own[0]["pending"]
        lag = own[0].get("lag")  # reported since Redis 7.0, but not always known
        return QueueReading(**known, waiting=lag, pending=delivered, idle_ms=_longest_idle(pending))

    def add_oldest_query(self, pipe: Pipeline) -> None:
        """Add the query for the oldest waiting message; the reply includes its payload."""
        pipe.xrange(self._queue, f"({self.last_delivered_id}", "+", count=1)

    @staticmethod
    def with_oldest(reading: QueueReading, entries: Any) -> QueueReading:
        """The reading with the age of the first undelivered entry."""
        if isinstance(entries, Exception):
            return reading.with_estimate()
        if not entries:
            return replace(reading, oldest_ms=0, waiting=0)
        position = codec.parse_stream_id(entries[0][0].decode())
        oldest_ms = position[0] if position else 0
        return replace(reading, oldest_ms=oldest_ms).with_estimate()


def combine_readings(readings: Sequence[QueueReading]) -> QueueReading:
    """The readings of several queues as one; a value missing in one is missing in the result."""
    if len(readings) == 1:
        return readings[0]

    def values(name: str) -> list[int] | None:
        found = [getattr(reading, name) for reading in readings]
        return None if not found or None in found else found

    known: dict[str, int | None] = {}
    for name in ("length", "waiting", "pending", "stream_bytes"):
        found = values(name)
        known[name] = None if found is None else sum(found)
    idle, oldest = values("idle_ms"), values("oldest_ms")
    known["idle_ms"] = None if idle is None else max(idle)
    known["oldest_ms"] = None if oldest is None else min(filter(None, oldest), default=0)
    return QueueReading(**known)


def _longest_idle(pending: Any) -> int | None:
    if isinstance(pending, Exception):
        return None
    return max((entry["time_since_delivered"] for entry in pending), default=0)


def _number(reply: Any) -> int | None:
    return reply if isinstance(reply, int) else None
