"""The state of the queue and its workers, read once for all checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from sluice.common import codec
from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.workers import MOST_WORKERS
from sluice.common.jobs.queue_stats import QueueReader, QueueReading, combine_readings
from sluice.common.observability.heartbeats import Heartbeat, parse_heartbeats, parse_worker_names


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer of the worker group."""

    name: str
    pending: int
    #: Milliseconds since the consumer last read a message or renewed a lease.
    idle_ms: int


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The state of the queue. Times are from the clock of Redis."""

    now_ms: int
    reading: QueueReading
    #: Whether the consumer group exists; None without the permission to check.
    has_group: bool | None
    consumers: tuple[Consumer, ...] = ()
    workers: tuple[Heartbeat, ...] = ()


def read_queue(client: Any, keys: JobKeys, group: str) -> QueueFacts:
    """Read the state in two round trips, independent of the queue length."""
    reader = QueueReader(keys.stream, group)
    with client.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.zrevrange(keys.workers, 0, MOST_WORKERS - 1)
        reader.add_queries(pipe)
        time_reply, name_reply, *replies = pipe.execute(raise_on_error=False)
    reading = reader.parse_replies(replies)
    names = parse_worker_names(name_reply)
    with client.pipeline(transaction=False) as pipe:
        pipe.mget([keys.worker(name) for name in names] or [keys.worker("")])
        pipe.xinfo_consumers(keys.stream, group)
        if reader.last_delivered_id is not None:
            reader.add_oldest_query(pipe)
        beats, consumers, *oldest = pipe.execute(raise_on_error=False)
    if oldest:
        reading = reader.with_oldest(reading, oldest[0])
    if isinstance(time_reply, Exception):
        raise time_reply
    return QueueFacts(
        now_ms=time_reply[0] * 1000 + time_reply[1] // 1000,
        reading=reading,
        has_group=_has_group(consumers),
        consumers=_consumers(consumers),
        workers=tuple(parse_heartbeats(beats, names)),
    )


def merge_facts(each: Sequence[QueueFacts]) -> QueueFacts:
    """Combine the queues of all partitions and lanes. Heartbeats are in the first one.

    A queue that never had a job may have no consumer group.
    """
    if len(each) == 1:
        return each[0]
    known = [facts.has_group for facts in each if facts.reading.length]
    known = known or [each[0].has_group]
    held: dict[str, list[Consumer]] = {}
    for facts in each:
        for consumer in facts.consumers:
            held.setdefault(consumer.name, []).append(consumer)
    return QueueFacts(
        now_ms=each[0].now_ms,
        reading=combine_readings([facts.reading for facts in each]),
        has_group=None if None in known else all(known),
        consumers=tuple(_merge_consumers(name, consumers) for name, consumers in held.items()),
        workers=each[0].workers,
    )


def _merge_consumers(name: str, consumers: Sequence[Consumer]) -> Consumer:
    """One consumer of several queues; idle time counts where it holds messages, if anywhere."""
    busy = [consumer.idle_ms for consumer in consumers if consumer.pending]
    idle_ms = max(busy) if busy else min(consumer.idle_ms for consumer in consumers)
    return Consumer(name, sum(consumer.pending for consumer in consumers), idle_ms)


def _has_group(consumers: object) -> bool | None:
    """Redis returns an error if the group or the queue does not exist."""
    if isinstance(consumers, NoPermissionError):
        return None
    return not isinstance(consumers, ResponseError)


def _consumers(reply: object) -> tuple[Consumer, ...]:
    if not isinstance(reply, list):
        return ()
    return tuple(
        Consumer(codec.decode_text(row["name"]), int(row["pending"]), int(row["idle"]))
        for row in reply
    )
