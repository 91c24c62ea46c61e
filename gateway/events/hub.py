"""One hub per process: tails every watched stream and hands each event to its watchers.

Our scripts publish the ids of jobs that got events; the hub then has just those streams read, all
of one server in one XREAD, and encodes each event once. A slow sweep over all watched streams
covers lost hints and foreign writers. One connection to each server, and one for the hints, serve
any number of clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from common.codec import decode_text
from common.contracts.jobs import FrameType
from common.observability.histogram import Histogram
from common.redis.partitions import HOME_PARTITION, Partitions
from common.redis.pipelined import CommandClient, keep_subscribed
from gateway.events.base import BaseHub
from gateway.events.frames import Frame, Source, job_source, notice_frame
from gateway.events.stream_reader import PAGE, StreamReader, Topic
from gateway.events.subscriber import EventSubscriber, Position, format_position

#: Upper bounds of the buckets for the time from an event's writing to its sending.
LAG_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)


class SseMetrics:
    """The numbers of one hub."""

    __slots__ = ("bytes", "events", "gaps", "lag", "resumes", "slow", "slow_closed")

    def __init__(self) -> None:
        self.events = self.bytes = self.resumes = self.gaps = self.slow = self.slow_closed = 0
        self.lag = Histogram(LAG_BOUNDS_S)

    def record_sent(
        self, batch: list[Frame], size: int, *, live: bool, numbered: bool = False
    ) -> None:
        """A batch goes to a client; only of a live one it matters how old it is."""
        self.bytes += size
        last = batch[-1]
        if last.id:
            # Notices come alone or, rarely, first: the difference is not worth a look at each.
            self.events += len(batch)
            if live:
                written_ms = last.ts if numbered else last.position[0]
                late_s = time.time() - written_ms / 1000
                self.lag.observe(late_s if late_s > 0.0 else 0.0)


#: The sweep names at most this many streams a second, and comes at most this often.
SWEEP_STREAMS_PER_S = 2000
SHORTEST_SWEEP_S, LONGEST_SWEEP_S = 0.1, 1.0


class EventHub(BaseHub[EventSubscriber]):
    """Everything about live events in this process.

    `reading` has the connection to each partition, in the order of their numbers; those on one
    server may share it. `listening` is None where whoever writes the events gives no hints.
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
        """What there is to watch of a core job."""
        return job_source(self._partitions.keys_for_job(job_id), job_id)

    def subscribe(
        self, source: Source, after: Position = (0, 0), *, ended: bool = False
    ) -> EventSubscriber:
        """Follow a job's events after a position; the caller closes the watch.

        `ended`: the job is over, so the stream is when all that is stored was handed out.
        """
        watch = EventSubscriber(self, source, after, ended=ended)
        self._add(watch)
        return watch

    async def page(self, source: Source, after: Position) -> list[Frame]:
        """Stored events after a position, oldest first, one page of them."""
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
        """Whether the event at a position is terminal, so that nothing can follow."""
        event_id = format_position(position)
        entries = await self._range("XRANGE", source, event_id, event_id, 1)
        if not entries:
            return False
        frame = source.frame(entries[0])
        return frame.type in source.ending and (source.accepts is None or source.accepts(frame))

    async def last_position(self, source: Source) -> Position:
        """Where a job's stream ends now."""
        last = await self.last_frame(source)
        return last.position if last is not None else (0, 0)

    async def gap_after(self, source: Source, after: Position) -> Frame | None:
        """A `gap` frame if events after a position were trimmed away, else None."""
        if source.timed and after == (0, 0):  # nobody knows where the history of such a one began
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
        # From the very beginning, the stream is whole if it still begins with its first event.
        elif after == (0, 0) and oldest.type == source.first:
            return None
        return notice_frame(FrameType.GAP, {"from": format_position(after), "to": oldest.id})

    # -- for watches -----------------------------------------------------------------------

    def read_position(self, source: Source) -> Position:
        """How far a watched stream was read for those who watch it live."""
        topic = self._topics.get(source.name)
        return topic.position if topic is not None else (0, 0)

    def attach(self, watch: EventSubscriber) -> bool:
        """Go live, if nothing was missed between the watch's last read and now."""
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
        """Stop live delivery to a watch."""
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

    # -- life ------------------------------------------------------------------------------

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
        """Jobs named here have new events."""
        topics = self._topics
        self._mark(topics[name] for name in decode_text(message).split(" ") if name in topics)

    @staticmethod
    def _mark(topics: Iterable[Topic]) -> None:
        for topic in topics:
            topic.reader.mark(topic)

    def _reader(self, source: Source) -> StreamReader:
        return self._by_tag.get(source.tag, self._home)

    async def _listen(self) -> None:
        """Stay subscribed to the hint channels: a Cluster tells all its nodes what is published."""
        assert self._listening is not None
        channel, *more = (keys.hints for keys in self._partitions.keys)
        await keep_subscribed(
            self._listening,
            channel,
            lambda: self._mark(self._topics.values()),  # hints may have been missed
            "live events come by the sweep meanwhile",
            more,
        )

    async def _sweep(self) -> None:
        """Look at every watched stream now and then, the more of them the less often."""
        while True:
            wait_s = len(self._topics) / SWEEP_STREAMS_PER_S
            await asyncio.sleep(min(max(wait_s, SHORTEST_SWEEP_S), LONGEST_SWEEP_S))
            self._mark(self._topics.values())

    def _check_silent(self, silent: Sequence[EventSubscriber]) -> None:
        """End the streams of jobs that are gone."""
        by_reader: dict[StreamReader, dict[str, Topic]] = {}
        for watch in silent:
            topic = self._topics.get(watch.source.name)
            if topic is not None and topic.source.record:
                by_reader.setdefault(topic.reader, {})[topic.name] = topic
        for reader, topics in by_reader.items():
            reader.end_if_gone(list(topics.values()))

    async def _range(
        self, command: str, source: Source, start: str, end: str, count: int
    ) -> list[Any]:
        return await self._reader(source).range(command, source, start, end, count)
