"""The queue and its workers, read once for all checks of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from common import codec
from common.contracts.jobs import JobKeys
from common.heartbeats import MOST_WORKERS, Heartbeat, heartbeats_in, names_in
from common.queue_reading import QueueReader, QueueReading


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
    reader = QueueReader(keys.queue, group)
    with client.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.zrevrange(keys.workers, 0, MOST_WORKERS - 1)
        reader.ask(pipe)
        time_reply, name_reply, *replies = pipe.execute(raise_on_error=False)
    reading = reader.answer(replies)
    names = names_in(name_reply)
    with client.pipeline(transaction=False) as pipe:
        pipe.mget([keys.worker(name) for name in names] or [keys.worker("")])
        pipe.xinfo_consumers(keys.queue, group)
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
