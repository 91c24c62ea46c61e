"""The queue and its workers, read once for all checks of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from common import codec
from common.contracts.jobs import JobKeys
from common.contracts.workers import MOST_WORKERS
from common.heartbeats import Heartbeat, heartbeats_in, names_in
from common.queue_reading import QueueReader, QueueReading, all_together


@dataclass(frozen=True, slots=True)
class Consumer:
    """A name within the group."""

    name: str
    pending: int
    #: Milliseconds since it was last heard of.
    idle_ms: int


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """How the queue stood, by the clock of Redis."""

    now_ms: int
    reading: QueueReading
    #: Whether the group that drains the queue is there; None where we may not ask.
    has_group: bool | None
    consumers: tuple[Consumer, ...] = ()
    workers: tuple[Heartbeat, ...] = ()


def read_queue(client: Any, keys: JobKeys, group: str) -> QueueFacts:
    """A few short round trips, however long the queue is."""
    reader = QueueReader(keys.stream, group)
    with client.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.zrevrange(keys.workers, 0, MOST_WORKERS - 1)
        reader.ask(pipe)
        time_reply, name_reply, *replies = pipe.execute(raise_on_error=False)
    reading = reader.answer(replies)
    names = names_in(name_reply)
    with client.pipeline(transaction=False) as pipe:
        pipe.mget([keys.worker(name) for name in names] or [keys.worker("")])
        pipe.xinfo_consumers(keys.stream, group)
        if reader.delivered is not None:
            reader.ask_oldest(pipe)
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
        workers=tuple(heartbeats_in(beats, names)),
    )


def joined(each: Sequence[QueueFacts]) -> QueueFacts:
    """The queues of all partitions and lanes as one; the home's is the first, where workers tell of
    themselves. One that never had a job may be without a group."""
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
        reading=all_together([facts.reading for facts in each]),
        has_group=None if None in known else all(known),
        consumers=tuple(_one(name, consumers) for name, consumers in held.items()),
        workers=each[0].workers,
    )


def _one(name: str, consumers: Sequence[Consumer]) -> Consumer:
    """As silent as where it holds something; where it holds nothing, as where it read last."""
    busy = [consumer.idle_ms for consumer in consumers if consumer.pending]
    idle_ms = max(busy) if busy else min(consumer.idle_ms for consumer in consumers)
    return Consumer(name, sum(consumer.pending for consumer in consumers), idle_ms)


def _has_group(consumers: object) -> bool | None:
    """Without the group, or without the queue, the question is answered with an error."""
    if isinstance(consumers, NoPermissionError):
        return None
    return not isinstance(consumers, ResponseError)


def _consumers(reply: object) -> tuple[Consumer, ...]:
    if not isinstance(reply, list):
        return ()
    return tuple(
        Consumer(codec.text(row["name"]), int(row["pending"]), int(row["idle"])) for row in reply
    )
