"""How the queue stands: how much waits, for how long, and whether somebody looks after it.

One short round trip, however long the queue is, and another for how old the oldest message is: that
one reads a message, which is none of a gateway's business. Each question may be refused by an ACL,
and a foreign hand may have put something else under the key: what is not known is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from common import codec
from common.contracts import values_of
from common.contracts.jobs import CountField

#: What HMGET asks the hash of counts for, in the order of `JobCounts`.
COUNT_FIELDS: Final = values_of(CountField)


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Sums over all gateways and workers of ours; zeros before the first job."""

    accepted: int = 0
    done: int = 0
    error: int = 0
    canceled: int = 0

    @property
    def ended(self) -> int:
        """How many ended, in whatever way."""
        return self.done + self.error + self.canceled

    @classmethod
    def from_values(cls, values: Sequence[bytes | None]) -> JobCounts:
        """From HMGET of `COUNT_FIELDS`; what a foreign hand made of a number counts as none."""
        return cls(*(codec.parse_int(value or b"0") for value in values))


#: Pending messages looked at for the one that was not heard of for longest, oldest ones first.
MOST_PENDING = 100
_BEGINNING = "0-0"
#: Commands that `QueueReader.ask` adds.
QUERY_COUNT = 4


def _number_or_none(description: str) -> int | None:
    """A member, with what pydantic is to check where a gateway reads it from a worker."""
    found: int | None = field(default=None, metadata={"ge": 0, "description": description})
    return found


@dataclass(frozen=True)
class QueueReading:
    """The queue as somebody saw it; None is what they could not see."""

    length: int | None = _number_or_none("Entries of the stream.")
    waiting: int | None = _number_or_none("Messages that nobody was given yet.")
    pending: int | None = _number_or_none("Messages that were given to workers and have not ended.")
    oldest_ms: int | None = _number_or_none(
        "When the oldest waiting message was queued, Unix milliseconds; 0 for none."
    )
    idle_ms: int | None = _number_or_none("Longest time that a pending message was not heard of.")
    stream_bytes: int | None = _number_or_none("Memory that the stream takes.")

    def with_estimate(self) -> QueueReading:
        """The same, with a guess at what waits where Redis does not know.

        A few entries that have ended and were not trimmed yet may be among it.
        """
        if self.waiting is not None or self.length is None or self.pending is None:
            return self
        return replace(self, waiting=max(0, self.length - self.pending))


class QueueReader:
    """Asks in two steps, so that the questions can travel with somebody else's."""

    def __init__(self, queue: str, group: str) -> None:
        self._queue = queue
        self._group = group
        #: After which id messages wait; None where nothing is known of the group.
        self.last_delivered_id: str | None = None

    async def read(self, client: Redis) -> QueueReading:
        """All there is to know; raises what keeps Redis from answering at all."""
        reading = await self.count(client)
        if self.last_delivered_id is None:
            return reading
        async with client.pipeline(transaction=False) as pipe:
            self.add_oldest_query(pipe)
            [entries] = await pipe.execute(raise_on_error=False)
        return self.with_oldest(reading, entries)

    async def count(self, client: Redis) -> QueueReading:
        """What is known without a look at a message, which not everybody may have."""
        async with client.pipeline(transaction=False) as pipe:
            self.add_queries(pipe)
            return self.parse_replies(await pipe.execute(raise_on_error=False))

    def add_queries(self, pipe: Pipeline) -> None:
        """Add the questions that tell nothing of what is in the messages."""
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
        ours = [info for info in groups if codec.decode_text(info["name"]) == self._group]
        if not ours:  # nothing was delivered yet
            self.last_delivered_id = _BEGINNING
            return QueueReading(**known, waiting=length, pending=0, idle_ms=0)
        self.last_delivered_id = codec.decode_text(ours[0]["last-delivered-id"])
        taken = ours[0]["pending"]
        lag = ours[0].get("lag")  # Redis knows it from 7.0 on, mostly
        return QueueReading(**known, waiting=lag, pending=taken, idle_ms=_longest_idle(pending))

    def add_oldest_query(self, pipe: Pipeline) -> None:
        """Add the question for the oldest message that waits; it comes with its payload."""
        pipe.xrange(self._queue, f"({self.last_delivered_id}", "+", count=1)

    @staticmethod
    def with_oldest(reading: QueueReading, entries: Any) -> QueueReading:
        """What is known with the first entry that was not delivered yet."""
        if isinstance(entries, Exception):
            return reading.with_estimate()
        if not entries:
            return replace(reading, oldest_ms=0, waiting=0)
        position = codec.parse_stream_id(entries[0][0].decode())
        oldest_ms = position[0] if position else 0
        return replace(reading, oldest_ms=oldest_ms).with_estimate()


def combine_readings(readings: Sequence[QueueReading]) -> QueueReading:
    """Several queues as one; what is not known of each is not known of all."""
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
