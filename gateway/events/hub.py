"""The event hub: one per process, tails every watched stream and delivers events to subscribers.

Sluice's Lua scripts publish hints: the ids of jobs that got new events. The hub then reads only
those streams, all of one server in one XREAD, and encodes each event once. A slow sweep over all
watched streams covers lost hints and third-party writers. One connection to each server and one
for the hints serve any number of clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sluice.common.codec import decode_text
from sluice.common.contracts.jobs import FrameType
from sluice.common.observability.histogram import Histogram
from sluice.common.redis.partitions import HOME_PARTITION, Partitions
from sluice.common.redis.pipelined import CommandClient, keep_subscribed
from sluice.gateway.events.base import BaseHub
from sluice.gateway.events.frames import Frame, Source, job_source, notice_frame
from sluice.gateway.events.stream_reader import PAGE, StreamReader, Topic
from sluice.gateway.events.subscriber import EventSubscriber, Position, format_position

#: Histogram bucket bounds for the delay between writing and sending an event.
LAG_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)


class SseMetrics:
    """Counters of the event streams."""

    __slots__ = ("bytes", "events", "gaps", "lag", "resumes", "slow", "slow_closed")

    def __init__(self) -> None:
        self.events = self.bytes = self.resumes = self.gaps = self.slow = self.slow_closed = 0
        self.lag = Histogram(LAG_BOUNDS_S)

    def record_sent(
        self, batch: list[Frame], size: int, *, live: bool, numbered: bool = False
    ) -> None:
        """Count a batch that was sent to a client; its delay is measured only for live streams."""
        self.bytes += size
        last = batch[-1]
        if last.id:
            # A notice comes alone or, rarely, first in a batch: counting it as an event is cheaper
            # than checking every frame.
            self.events += len(batch)
            if live:
                written_ms = last.ts if numbered else last.position[0]
                late_s = time.time() - written_ms / 1000
                self.lag.observe(late_s if late_s > 0.0 else 0.0)


#: The sweep reads at most this many streams per second. The interval between two sweeps is kept
#: within the bounds below.
SWEEP_STREAMS_PER_S = 2000
SHORTEST_SWEEP_S, LONGEST_SWEEP_S = 0.1, 1.0


class EventHub(BaseHub[EventSubscriber]):
    """Delivers the events of jobs to all subscribers of this process.

    `reading` holds the connection to each partition, in partition order; partitions on one server
    may share a connection. `listening` is the connection for hints; None if the writers of the
    events publish no hints.
    """

    def __init__(
        self,
        reading: Sequence[CommandClient],
        listening: CommandClient | None,
        partitions: Partitions,
        heartbeat_s: float,
        max_life_s: float,
        metrics: SseMetrics | None = None,
    ) -> None:
        super().__init__(heartbeat_s, max_life_s)
        by_wire = {wire: StreamReader(wire) for wire in reading}
        self._readers = tuple(by_wire.values())
        self._by_tag = {keys.tag: by_wire[wire] for keys, wire in zip(partitions.keys, reading)}
        self._home = by_wire[reading[HOME_PARTITION]]
        self._listening = listening
        self._partitions = partitions
        self._topics: dict[str, Topic] = {}
        #: Hubs may share their counters.
        self.metrics = metrics or SseMetrics()

    # -- for routes ------------------------------------------------------------------------

    def job(self, job_id: str) -> Source:
        """The event stream of a core job."""
        return job_source(self._partitions.keys_for_job(job_id), job_id)

    def subscribe(
        self, source: Source, after: Position = (0, 0), *, ended: bool = False
    ) -> EventSubscriber:
        """Subscribe to a job's events after a position; the caller closes the subscriber.

        `ended`: the job is finished, so the stream ends after the stored events.
        """
        watch = EventSubscriber(self, source, after, ended=ended)
        self._add(watch)
        return watch

    async def page(self, source: Source, after: Position) -> list[Frame]:
        """One page of stored events after a position, oldest first."""
        ms, seq = after
        start = f"({ms}-{seq}" if after > (0, 0) else "-"
        entries = await self._range("XRANGE", source, start, "+", PAGE)
        return [source.frame(entry) for entry in entries]

    async def last_frame(self, source: Source) -> Frame | None:
        """The newest event of a job."""
        entries = await self._range("XREVRANGE", source, "+", "-", 1)
        return source.frame(entries[0]) if entries else None

    async def newest(self, source: Source, count: int) -> list[Frame]:
        """The last events of a stream, the newest first."""
        entries = await self._range("XREVRANGE", source, "+", "-", count)
        return [source.frame(entry) for entry in entries]

    async def is_terminal_at(self, source: Source, position: Position) -> bool:
        """True if the event at a position is terminal, so that no event can follow it."""
        event_id = format_position(position)
        entries = await self._range("XRANGE", source, event_id, event_id, 1)
        if not entries:
            return False
        frame = source.frame(entries[0])
        return frame.type in source.ending and (source.accepts is None or source.accepts(frame))

    async def last_position(self, source: Source) -> Position:
        """Position of the newest event; (0, 0) if there are none."""
        last = await self.last_frame(source)
        return last.position if last is not None else (0, 0)

    async def gap_after(self, source: Source, after: Position) -> Frame | None:
        """A `gap` frame if events after a position were trimmed away, else None."""
        if source.timed and after == (0, 0):  # the first event of such a stream is unknown
            return None
        first = await self._range("XRANGE", source, "-", "+", 1)
        if not first:
            return None
        oldest = source.frame(first[0])
        if oldest.position <= after:
            return None
        if source.numbered:
            if oldest.position == (after[0] + 1, 0):
                return None
        # A client that starts at the beginning misses nothing if the first event is still stored.
        elif after == (0, 0) and oldest.type == source.first:
            return None
        return notice_frame(FrameType.GAP, {"from": format_position(after), "to": oldest.id})

    # -- for subscribers -------------------------------------------------------------------

    def read_position(self, source: Source) -> Position:
        """Position up to which a stream was read for its live subscribers."""
        topic = self._topics.get(source.name)
        return topic.position if topic is not None else (0, 0)

    def attach(self, watch: EventSubscriber) -> bool:
        """Start live delivery; False if events arrived since the subscriber's last read."""
        source = watch.source
        topic = self._topics.get(source.name)
        if topic is None:
            topic = Topic(source, watch.position, self._reader(source))
            self._topics[source.name] = topic
            topic.reader.mark(topic)
        elif topic.position > watch.position:
            return False
        topic.subscribers.add(watch)
        return True

    def detach(self, watch: EventSubscriber) -> None:
        """Stop live delivery to a subscriber."""
        name = watch.source.name
        topic = self._topics.get(name)
        if topic is not None:
            topic.subscribers.discard(watch)
            if not topic.subscribers:
                del self._topics[name]
                topic.reader.dirty.pop(name, None)

    def forget(self, watch: EventSubscriber) -> None:
        self.detach(watch)
        super().forget(watch)

    # -- lifecycle -------------------------------------------------------------------------

    def start(self) -> None:
        for reader in self._readers:
            self._tasks.append(asyncio.create_task(reader.run(), name="hub_pump"))
        roles = [self._sweep, self._beat]
        if self._listening is not None:
            roles.append(self._listen)
        for role in roles:
            self._tasks.append(asyncio.create_task(role(), name=f"hub{role.__name__}"))

    async def stop(self) -> None:
        await super().stop()
        for reader in self._readers:
            await reader.stop()

    def on_hint(self, message: bytes) -> None:
        """Mark the streams that a hint names: they have new events."""
        topics = self._topics
        self._mark(topics[name] for name in decode_text(message).split(" ") if name in topics)

    @staticmethod
    def _mark(topics: Iterable[Topic]) -> None:
        for topic in topics:
            topic.reader.mark(topic)

    def _reader(self, source: Source) -> StreamReader:
        return self._by_tag.get(source.tag, self._home)

    async def _listen(self) -> None:
        """Stay subscribed to the hint channels; one node is enough, because Redis Cluster forwards
        published messages to all nodes."""
        assert self._listening is not None
        channel, *more = (keys.hints for keys in self._partitions.keys)
        await keep_subscribed(
            self._listening,
            channel,
            lambda: self._mark(self._topics.values()),  # hints may have been missed
            "live events are found by the periodic sweep until the connection is back",
            more,
        )

    async def _sweep(self) -> None:
        """Mark every watched stream periodically; the more there are, the less often."""
        while True:
            wait_s = len(self._topics) / SWEEP_STREAMS_PER_S
            await asyncio.sleep(min(max(wait_s, SHORTEST_SWEEP_S), LONGEST_SWEEP_S))
            self._mark(self._topics.values())

    def _check_idle(self, idle: Sequence[EventSubscriber]) -> None:
        """End the streams of jobs that no longer exist."""
        by_reader: dict[StreamReader, dict[str, Topic]] = {}
        for watch in idle:
            topic = self._topics.get(watch.source.name)
            if topic is not None and topic.source.record:
                by_reader.setdefault(topic.reader, {})[topic.name] = topic
        for reader, topics in by_reader.items():
            reader.end_if_gone(list(topics.values()))

    async def _range(
        self, command: str, source: Source, start: str, end: str, count: int
    ) -> list[Any]:
        return await self._reader(source).range(command, source, start, end, count)
