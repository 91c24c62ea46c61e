"""Reads the watched streams of one Redis server: all marked streams in one XREAD.

Each server has its own reader, so that an unreachable server delays only its own streams. All keys
of one command are in one partition, or on a server that accepts keys of several.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError, ResponseError

from sluice.common.aio import cancel
from sluice.common.contracts.jobs import FrameType
from sluice.common.errors import StoreUnavailable
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.pipelined import CommandClient
from sluice.gateway.events.frames import Frame, Source, notice_frame, shutdown_frame
from sluice.gateway.events.subscriber import EventSubscriber, Position, format_position

log = logging.getLogger(__name__)

#: Events read per stream and command.
PAGE = 200
#: Maximum number of streams in one XREAD.
STREAMS_PER_READ = 512
RECONNECT_S = 0.5


class Topic:
    """A watched stream: its read position, its reader and its subscribers."""

    __slots__ = ("key", "name", "position", "reader", "source", "subscribers")

    def __init__(self, source: Source, position: Position, reader: StreamReader) -> None:
        self.source = source
        self.name = source.name
        self.key = source.events
        self.position = position
        self.reader = reader
        self.subscribers: set[EventSubscriber] = set()

    def end(self, last: Frame) -> None:
        """End the streams of all subscribers with this frame."""
        for watch in list(self.subscribers):
            watch.end(last)


class StreamReader:
    """One connection, and the streams to read from it next."""

    def __init__(self, wire: CommandClient) -> None:
        self._wire = wire
        self.dirty: dict[str, Topic] = {}
        self._wake = asyncio.Event()
        self._existence_check: asyncio.Task[None] | None = None

    def mark(self, topic: Topic) -> None:
        self.dirty[topic.name] = topic
        self._wake.set()

    async def run(self) -> None:
        """Read marked streams as soon as possible; those marked meanwhile form the next batch."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self.dirty:
                names = list(itertools.islice(self.dirty, STREAMS_PER_READ))
                topics = [self.dirty.pop(name) for name in names]
                try:
                    await self._read(topics)
                except Exception as error:  # live events must survive any error
                    log.warning(
                        "event streams: read failed, retrying: %s",
                        error,
                        exc_info=_is_unexpected(error),
                    )
                    await asyncio.sleep(RECONNECT_S)
                    for topic in topics:
                        if topic.subscribers:
                            self.mark(topic)

    async def stop(self) -> None:
        if self._existence_check is not None:
            await cancel(self._existence_check)

    async def _read(self, topics: list[Topic]) -> None:
        keys = [topic.key for topic in topics]
        ids = [format_position(topic.position) for topic in topics]
        try:
            reply: Any = await self._wire.execute_command(
                "XREAD", "COUNT", PAGE, "STREAMS", *keys, *ids
            )
        except ResponseError as error:
            if not _is_wrong_type(error):
                raise
            await self._isolate(topics, error)
            return
        by_key = {topic.key.encode(): topic for topic in topics}
        for key, entries in reply or ():
            topic = by_key[key]
            self._deliver(topic, [topic.source.frame(entry) for entry in entries])

    async def _isolate(self, topics: list[Topic], error: ResponseError) -> None:
        """Read the streams one by one, so that a key of another type does not block the others."""
        if len(topics) > 1:
            for topic in topics:
                await self._read([topic])
            return
        log.error("event stream %s: unreadable: %s", topics[0].key, error)
        topics[0].end(notice_frame(FrameType.GONE, {"detail": "the event stream is unreadable"}))

    def _deliver(self, topic: Topic, frames: list[Frame]) -> None:
        topic.position = frames[-1].position
        for watch in list(topic.subscribers):
            watch.deliver(frames)
        if len(frames) == PAGE:
            self.mark(topic)

    def end_if_gone(self, topics: Sequence[Topic]) -> None:
        """End the streams of jobs that are gone, or whose events a failover has lost.

        Runs in the background, one check at a time.
        """
        if self._existence_check is None or self._existence_check.done():
            self._existence_check = asyncio.create_task(self._end_if_gone(topics), name="hub_gone")

    async def _end_if_gone(self, topics: Sequence[Topic]) -> None:
        positions = [topic.position for topic in topics]
        ask = self._wire.execute_command
        try:
            exist = await asyncio.gather(*(ask("EXISTS", topic.source.record) for topic in topics))
            newest = await asyncio.gather(
                *(ask("XREVRANGE", topic.key, "+", "-", "COUNT", 1) for topic in topics),
                return_exceptions=True,
            )
            for topic, exists, entries, position in zip(topics, exist, newest, positions):
                if not exists:
                    topic.end(notice_frame(FrameType.GONE, {"detail": "the job has expired"}))
                elif _newest_position(topic, entries) < position:
                    # A failover lost events that clients already have. Events written since may
                    # have smaller ids and would never be read: let the clients resume.
                    topic.end(shutdown_frame())
        except Exception as error:
            detail = "could not check whether watched jobs still exist, trying again later: %s"
            log.info(detail, error, exc_info=_is_unexpected(error))

    async def range(
        self, command: str, source: Source, start: str, end: str, count: int
    ) -> list[Any]:
        """Entries of one stream, by XRANGE or XREVRANGE; raises StoreUnavailable."""
        try:
            reply = await self._wire.execute_command(
                command, source.events, start, end, "COUNT", count
            )
        except ResponseError as error:
            if _is_wrong_type(error):
                return []
            raise StoreUnavailable(str(error)) from error
        except TRANSIENT_ERRORS as error:
            raise StoreUnavailable(str(error)) from error
        return list(reply)


def _newest_position(topic: Topic, entries: Any) -> Position:
    """Position of the newest stored event; that of the topic if it could not be read."""
    if isinstance(entries, list) and entries:
        return topic.source.frame(entries[0]).position
    return topic.position


def _is_unexpected(error: Exception) -> bool:
    """True if the log should include the traceback."""
    return not isinstance(error, (RedisError, *TRANSIENT_ERRORS))


def _is_wrong_type(error: ResponseError) -> bool:
    return str(error).startswith("WRONGTYPE")
