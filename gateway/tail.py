"""One hub per process: tails every watched stream and hands each event to its watchers.

Our scripts publish the ids of jobs that got events; the hub then has just those streams read, all
of one server in one XREAD, and encodes each event once. A slow sweep over all watched streams
covers lost hints and foreign writers. One connection to each server, and one for the hints, serve
any number of clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from common.cancellation import cancel
from common.codec import text
from common.contracts.jobs import FrameType
from common.partitions import HOME, Partitions
from common.subscription import stay_subscribed
from common.wire import Commander
from gateway.frames import Frame, farewell, heartbeat, notice
from gateway.sources import Source, job_source
from gateway.sse_numbers import SseNumbers
from gateway.stream_reader import PAGE, StreamReader, Topic
from gateway.watch import Position, Watch, format_position

#: The sweep names at most this many streams a second, and comes at most this often.
SWEEP_STREAMS_PER_S = 2000
SHORTEST_SWEEP_S, LONGEST_SWEEP_S = 0.1, 1.0


class Hub:
    """Everything about live events in this process.

    `reading` has the connection to each partition, in the order of their numbers; those on one
    server may share it. `listening` is None where whoever writes the events gives no hints.
    """

    def __init__(
        self,
        reading: Sequence[Commander],
        listening: Commander | None,
        partitions: Partitions,
        heartbeat_s: float,
        max_life_s: float,
    ) -> None:
        by_wire = {wire: StreamReader(wire) for wire in reading}
        self._readers = tuple(by_wire.values())
        self._by_tag = {keys.tag: by_wire[wire] for keys, wire in zip(partitions.keys, reading)}
        self._home = by_wire[reading[HOME]]
        self._listening = listening
        self._partitions = partitions
        self._heartbeat_s = heartbeat_s
        self._max_life_s = max_life_s
        self._topics: dict[str, Topic] = {}
        self._watches: set[Watch] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.closing = False
        self.numbers = SseNumbers()

    # -- for routes ------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        """How many watches are open."""
        return len(self._watches)

    def job(self, job_id: str) -> Source:
        """What there is to watch of a core job."""
        return job_source(self._partitions.of_job(job_id), job_id)

    def watch(self, source: Source, after: Position = (0, 0), *, ended: bool = False) -> Watch:
        """Follow a job's events after a position; the caller closes the watch.

        `ended`: the job is over, so the stream is when all that is stored was handed out.
        """
        watch = Watch(self, source, after, ended=ended)
        self._watches.add(watch)
        if self.closing:
            watch.end(farewell())
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

    async def ends_at(self, source: Source, position: Position) -> bool:
        """Whether the event at a position is terminal, so that nothing can follow."""
        event_id = format_position(position)
        entries = await self._range("XRANGE", source, event_id, event_id, 1)
        if not entries:
            return False
        frame = source.frame(entries[0])
        return frame.type in source.ending and (source.wanted is None or source.wanted(frame))

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
        return notice(FrameType.GAP, {"from": format_position(after), "to": oldest.id})

    # -- for watches -----------------------------------------------------------------------

    def read_position(self, source: Source) -> Position:
        """How far a watched stream was read for those who watch it live."""
        topic = self._topics.get(source.name)
        return topic.position if topic is not None else (0, 0)

    def attach(self, watch: Watch) -> bool:
        """Go live, if nothing was missed between the watch's last read and now."""
        source = watch.source
        topic = self._topics.get(source.name)
        if topic is None:
            topic = Topic(source, watch.position, self._reader(source))
            self._topics[source.name] = topic
            topic.reader.mark(topic)
        elif topic.position > watch.position:
            return False
        topic.watches.add(watch)
        return True

    def detach(self, watch: Watch) -> None:
        """Stop live delivery to a watch."""
        name = watch.source.name
        topic = self._topics.get(name)
        if topic is not None:
            topic.watches.discard(watch)
            if not topic.watches:
                del self._topics[name]
                topic.reader.dirty.pop(name, None)

    def forget(self, watch: Watch) -> None:
        """The client has left."""
        self.detach(watch)
        self._watches.discard(watch)

    # -- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start tailing."""
        for reader in self._readers:
            self._tasks.append(asyncio.create_task(reader.run(), name="hub_pump"))
        roles = [self._sweep, self._beat]
        if self._listening is not None:
            roles.append(self._listen)
        for role in roles:
            self._tasks.append(asyncio.create_task(role(), name=f"hub{role.__name__}"))

    def say_goodbye(self) -> None:
        """End every stream politely; clients resume elsewhere, or here after a restart."""
        self.closing = True
        last = farewell()
        for watch in list(self._watches):
            watch.end(last)

    async def stop(self) -> None:
        """Stop tailing."""
        self.say_goodbye()
        await cancel(*self._tasks)
        for reader in self._readers:
            await reader.stop()

    def hinted(self, message: bytes) -> None:
        """Jobs named here have new events."""
        topics = self._topics
        self._mark(topics[name] for name in text(message).split(" ") if name in topics)

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
        await stay_subscribed(
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

    async def _beat(self) -> None:
        """Heartbeats in silence, the end of streams whose job is gone or whose time is up."""
        while True:
            await asyncio.sleep(min(1.0, self._heartbeat_s / 4))
            now = asyncio.get_running_loop().time()
            silent: dict[StreamReader, dict[str, Topic]] = {}
            beat = heartbeat()
            for watch in list(self._watches):
                if now - watch.opened >= self._max_life_s:
                    watch.end(farewell())
                elif now - watch.spoke >= self._heartbeat_s:
                    watch.deliver_notice(beat)
                    topic = self._topics.get(watch.source.name)
                    if topic is not None and topic.source.record:
                        silent.setdefault(topic.reader, {})[topic.name] = topic
            for reader, topics in silent.items():
                reader.end_if_gone(list(topics.values()))

    async def _range(
        self, command: str, source: Source, start: str, end: str, count: int
    ) -> list[Any]:
        return await self._reader(source).range(command, source, start, end, count)
