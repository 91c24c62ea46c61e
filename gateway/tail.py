"""One hub per process: tails every watched stream and hands each event to its watchers.

Our scripts publish the ids of jobs that got events; the hub then reads just those streams, all in
one XREAD, and encodes each event once. A slow sweep over all watched streams covers lost hints
and foreign writers. Two connections serve any number of clients.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable
from typing import Any

from redis.exceptions import RedisError, ResponseError

from common.cancellation import cancel
from common.codec import Event, text
from common.connection import TRANSIENT_ERRORS
from common.contracts.jobs import EventType, FrameType, JobKeys
from common.errors import StoreUnavailable
from common.subscription import stay_subscribed
from common.wire import Commander
from gateway.frames import RETRY_AFTER_SHUTDOWN_MS, Frame, event_frame, heartbeat, notice
from gateway.sse_numbers import SseNumbers
from gateway.watch import Position, Watch, format_position

log = logging.getLogger(__name__)

#: Events read per stream and turn.
PAGE = 200
#: Streams named in one XREAD.
STREAMS_PER_READ = 512
#: The sweep names at most this many streams a second, and comes at most this often.
SWEEP_STREAMS_PER_S = 2000
SHORTEST_SWEEP_S, LONGEST_SWEEP_S = 0.1, 1.0
RECONNECT_S = 0.5


class Topic:
    """A watched stream: how far it was read, and who watches."""

    __slots__ = ("job_id", "key", "position", "watches")

    def __init__(self, job_id: str, key: str, position: Position) -> None:
        self.job_id = job_id
        self.key = key
        self.position = position
        self.watches: set[Watch] = set()


class Hub:
    """Everything about live events in this process."""

    def __init__(
        self,
        reading: Commander,
        listening: Commander,
        keys: JobKeys,
        heartbeat_s: float,
        max_life_s: float,
    ) -> None:
        self._reading = reading
        self._listening = listening
        self._keys = keys
        self._heartbeat_s = heartbeat_s
        self._max_life_s = max_life_s
        self._topics: dict[str, Topic] = {}
        self._watches: set[Watch] = set()
        self._dirty: dict[str, Topic] = {}
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.closing = False
        self.numbers = SseNumbers()

    # -- for routes ------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        """How many watches are open."""
        return len(self._watches)

    def watch(self, job_id: str, after: Position = (0, 0)) -> Watch:
        """Follow a job's events after a position; the caller closes the watch."""
        watch = Watch(self, job_id, after)
        self._watches.add(watch)
        if self.closing:
            watch.end(_farewell())
        return watch

    async def page(self, job_id: str, after: Position) -> list[Frame]:
        """Stored events after a position, oldest first, one page of them."""
        ms, seq = after
        start = f"({ms}-{seq}" if after > (0, 0) else "-"
        entries = await self._range("XRANGE", job_id, start, "+", PAGE)
        return [_frame(entry) for entry in entries]

    async def last_frame(self, job_id: str) -> Frame | None:
        """The newest event of a job."""
        entries = await self._range("XREVRANGE", job_id, "+", "-", 1)
        return _frame(entries[0]) if entries else None

    async def ends_at(self, job_id: str, position: Position) -> bool:
        """Whether the event at a position is terminal, so that nothing can follow."""
        event_id = format_position(position)
        entries = await self._range("XRANGE", job_id, event_id, event_id, 1)
        return bool(entries) and _event(entries[0]).terminal

    async def last_position(self, job_id: str) -> Position:
        """Where a job's stream ends now."""
        last = await self.last_frame(job_id)
        return last.position if last is not None else (0, 0)

    async def gap_after(self, job_id: str, after: Position) -> Frame | None:
        """A `gap` frame if events after a position were trimmed away, else None."""
        first = await self._range("XRANGE", job_id, "-", "+", 1)
        if not first:
            return None
        event = _event(first[0])
        oldest = event_frame(event)
        if oldest.position <= after:
            return None
        # From the very beginning, the stream is whole if it still begins with its first event.
        if after == (0, 0) and event.type == EventType.QUEUED.value:
            return None
        return notice(FrameType.GAP, {"from": format_position(after), "to": oldest.id})

    # -- for watches -----------------------------------------------------------------------

    def read_position(self, job_id: str) -> Position:
        """How far a watched stream was read for those who watch it live."""
        topic = self._topics.get(job_id)
        return topic.position if topic is not None else (0, 0)

    def attach(self, watch: Watch) -> bool:
        """Go live, if nothing was missed between the watch's last read and now."""
        topic = self._topics.get(watch.job_id)
        if topic is None:
            key = self._keys.events(watch.job_id)
            topic = self._topics[watch.job_id] = Topic(watch.job_id, key, watch.position)
            self._mark((topic,))
        elif topic.position > watch.position:
            return False
        topic.watches.add(watch)
        return True

    def detach(self, watch: Watch) -> None:
        """Stop live delivery to a watch."""
        topic = self._topics.get(watch.job_id)
        if topic is not None:
            topic.watches.discard(watch)
            if not topic.watches:
                del self._topics[watch.job_id]
                self._dirty.pop(watch.job_id, None)

    def forget(self, watch: Watch) -> None:
        """The client has left."""
        self.detach(watch)
        self._watches.discard(watch)

    # -- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start tailing."""
        for role in (self._pump, self._listen, self._sweep, self._beat):
            self._tasks.append(asyncio.create_task(role(), name=f"hub{role.__name__}"))

    def say_goodbye(self) -> None:
        """End every stream politely; clients resume elsewhere, or here after a restart."""
        self.closing = True
        farewell = _farewell()
        for watch in list(self._watches):
            watch.end(farewell)

    async def stop(self) -> None:
        """Stop tailing."""
        self.say_goodbye()
        await cancel(*self._tasks)

    def hinted(self, message: bytes) -> None:
        """Jobs named here have new events."""
        topics = self._topics
        self._mark(topics[name] for name in text(message).split(" ") if name in topics)

    def _mark(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            self._dirty[topic.job_id] = topic
        if self._dirty:
            self._wake.set()

    async def _pump(self) -> None:
        """Read what is marked, at once; what is marked meanwhile is read together next."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._dirty:
                names = list(itertools.islice(self._dirty, STREAMS_PER_READ))
                topics = [self._dirty.pop(name) for name in names]
                try:
                    await self._read(topics)
                except Exception as error:  # whatever it is, live events must go on
                    log.warning("event streams wait: %s", error, exc_info=_unforeseen(error))
                    await asyncio.sleep(RECONNECT_S)
                    self._mark(topic for topic in topics if topic.watches)

    async def _read(self, topics: list[Topic]) -> None:
        keys = [topic.key for topic in topics]
        ids = [format_position(topic.position) for topic in topics]
        try:
            reply: Any = await self._reading.execute_command(
                "XREAD", "COUNT", PAGE, "STREAMS", *keys, *ids
            )
        except ResponseError as error:
            if not _is_wrong_type(error):
                raise
            await self._isolate(topics, error)
            return
        by_key = {topic.key.encode(): topic for topic in topics}
        for key, entries in reply or ():
            self._deliver(by_key[key], [_frame(entry) for entry in entries])

    async def _isolate(self, topics: list[Topic], error: ResponseError) -> None:
        """One key of another type must not silence its neighbours."""
        if len(topics) > 1:
            for topic in topics:
                await self._read([topic])
            return
        log.error("stream %s is unreadable: %s", topics[0].key, error)
        self._end(topics[0], notice(FrameType.GONE, {"detail": "the event stream is unreadable"}))

    def _deliver(self, topic: Topic, frames: list[Frame]) -> None:
        topic.position = frames[-1].position
        for watch in list(topic.watches):
            watch.deliver(frames)
        if len(frames) == PAGE:
            self._mark((topic,))

    @staticmethod
    def _end(topic: Topic, last: Frame) -> None:
        for watch in list(topic.watches):
            watch.end(last)

    async def _listen(self) -> None:
        """Stay subscribed to the hint channel."""
        await stay_subscribed(
            self._listening,
            self._keys.hints,
            lambda: self._mark(self._topics.values()),  # hints may have been missed
            "live events come by the sweep meanwhile",
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
            silent: dict[str, Topic] = {}
            beat = heartbeat()
            for watch in list(self._watches):
                if now - watch.opened >= self._max_life_s:
                    watch.end(_farewell())
                elif now - watch.spoke >= self._heartbeat_s:
                    watch.deliver_notice(beat)
                    topic = self._topics.get(watch.job_id)
                    if topic is not None:
                        silent[topic.job_id] = topic
            try:
                await self._end_if_gone(list(silent.values()))
            except Exception as error:
                detail = "whether jobs still exist is asked later: %s"
                log.info(detail, error, exc_info=_unforeseen(error))

    async def _end_if_gone(self, topics: list[Topic]) -> None:
        found = await asyncio.gather(
            *(
                self._reading.execute_command("EXISTS", self._keys.job(topic.job_id))
                for topic in topics
            )
        )
        for topic, exists in zip(topics, found):
            if not exists:
                self._end(topic, notice(FrameType.GONE, {"detail": "the job has expired"}))

    async def _range(
        self, command: str, job_id: str, start: str, end: str, count: int
    ) -> list[Any]:
        key = self._keys.events(job_id)
        try:
            reply = await self._reading.execute_command(command, key, start, end, "COUNT", count)
        except ResponseError as error:
            if _is_wrong_type(error):
                return []
            raise StoreUnavailable(str(error)) from error
        except TRANSIENT_ERRORS as error:
            raise StoreUnavailable(str(error)) from error
        return list(reply)


def _unforeseen(error: Exception) -> bool:
    """Whether the log should say where it came from."""
    return not isinstance(error, (RedisError, *TRANSIENT_ERRORS))


def _is_wrong_type(error: ResponseError) -> bool:
    return str(error).startswith("WRONGTYPE")


def _event(entry: list[Any]) -> Event:
    entry_id, flat = entry
    return Event.from_entry(entry_id, dict(zip(flat[::2], flat[1::2])))


def _frame(entry: list[Any]) -> Frame:
    return event_frame(_event(entry))


def _farewell() -> Frame:
    detail = "this stream is closing; reconnect with Last-Event-ID to go on"
    return notice(FrameType.SHUTDOWN, {"detail": detail}, retry_ms=RETRY_AFTER_SHUTDOWN_MS)
