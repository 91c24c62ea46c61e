"""What goes on, for pages: one reader a gateway, however many pages are open.

It begins with the first page and ends with the last. A few times a second it reads the new samples
and those jobs of which hints say that they have changed, and encodes what there is to tell once for
all pages of one audience.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from common import codec
from common.cancellation import cancel
from common.contracts.jobs import EventField
from common.contracts.stats import SECONDS, FeedEvent
from common.errors import SluiceError
from common.partition_lines import Lines
from gateway.callers import Caller
from gateway.feed_jobs import Changed, Changes, Newcomers, Summaries, core_ids
from gateway.feed_watch import FeedWatch
from gateway.frames import Frame, farewell, heartbeat
from gateway.sse_numbers import SseNumbers
from gateway.stats.history import History
from gateway.stats.points import Point
from gateway.watch import format_position

log = logging.getLogger(__name__)

#: Seconds between two looks: what happens in between is told together.
TICK_S: Final = 0.25
#: Of callers who see the jobs of every tenant.
EVERYBODY: Final = ""


class Feed:
    """Everything about live pages in this process."""

    def __init__(
        self,
        lines: Lines,
        history: History,
        numbers: SseNumbers,
        heartbeat_s: float,
        max_life_s: float,
        tick_s: float = TICK_S,
    ) -> None:
        self._history = history
        self._numbers = numbers
        self._heartbeat_s = heartbeat_s
        self._max_life_s = max_life_s
        self._tick_s = tick_s
        self._summaries = Summaries(lines)
        self._newcomers = Newcomers(lines)
        self._watches: set[FeedWatch] = set()
        #: By how the ids of the jobs end that an audience may see.
        self._changed: dict[str, Changed] = {}
        self._reader: asyncio.Task[None] | None = None
        self.closing = False

    # -- for routes ------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        """How many pages are open."""
        return len(self._watches)

    async def ready(self) -> None:
        """Before the first page that wants jobs: what is accepted from now on is news. Raises
        StoreUnavailable."""
        if not self._changed:
            self._newcomers.forget()
            await self._newcomers.look()

    def watch(self, caller: Caller | None, points: Sequence[Point] | None, after: int) -> FeedWatch:
        """Follow what goes on; the caller closes the watch.

        `caller`: whose jobs; None for none. `points`: those after a time that the page is given at
        once; None for none at all.
        """
        audience = None
        if caller is not None:
            audience = EVERYBODY if caller.sees_all else caller.tail
            self._changed.setdefault(audience, Changed(caller.may_see))
        watch = FeedWatch(self, audience, None if points is None else after)
        self._watches.add(watch)
        if after and points and points[0].ts > after + SECONDS.step_ms:
            self._numbers.gaps += 1
            watch.miss(after, points[0].ts)
        watch.deliver_points([_point_frame(point) for point in points or ()])
        if self.closing:
            watch.end(farewell())
        elif self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._run(), name="feed")
        return watch

    # -- for watches -----------------------------------------------------------------------

    def forget(self, watch: FeedWatch) -> None:
        """The page has left."""
        self._watches.discard(watch)
        left = watch.audience
        if left is not None and not any(each.audience == left for each in self._watches):
            self._changed.pop(left, None)

    def slow(self) -> None:
        """A page reads so slowly that it has missed something."""
        self._numbers.slow += 1

    # -- life ------------------------------------------------------------------------------

    def hinted(self, message: bytes) -> None:
        """Jobs named here have changed."""
        if self._changed:
            job_ids = core_ids(message)
            for changed in self._changed.values():
                changed.add(job_ids)

    def say_goodbye(self) -> None:
        """End every stream politely; pages come back elsewhere, or here after a restart."""
        self.closing = True
        last = farewell()
        for watch in list(self._watches):
            watch.end(last)

    async def stop(self) -> None:
        """Stop reading."""
        self.say_goodbye()
        if self._reader is not None:
            await cancel(self._reader)

    async def _run(self) -> None:
        """Look until the last page has left; trouble is left to the next look."""
        while self._watches:
            try:
                await self.run_once()
            except SluiceError as error:
                log.info("pages wait: %s", error)
            except Exception:  # whatever it is, pages must go on
                log.exception("pages wait after an unexpected fault")
            self._beat()
            await asyncio.sleep(self._tick_s)

    async def run_once(self) -> None:
        """Tell what is new."""
        await self._tell_points()
        await self._tell_jobs()

    async def _tell_points(self) -> None:
        wanted = [watch for watch in self._watches if watch.after is not None]
        if not wanted:
            return
        points = await self._history.points(SECONDS, min(watch.after or 0 for watch in wanted))
        frames = [_point_frame(point) for point in points]
        newest = self._history.newest
        for watch in wanted:
            watch.deliver_points(frames)
            if newest is not None:
                watch.not_after(newest.ts)

    async def _tell_jobs(self) -> None:
        if not self._changed:
            return
        newcomers = await self._newcomers.look()
        for changed in self._changed.values():
            changed.add(newcomers)
        taken = {audience: changed.take() for audience, changed in self._changed.items()}
        ids = dict.fromkeys(job_id for job_ids in taken.values() for job_id in job_ids)
        try:
            found = await self._summaries.read(ids)
        except Exception:
            for audience, job_ids in taken.items():
                if audience in self._changed:
                    self._changed[audience].add(reversed(job_ids))
            raise
        for audience, job_ids in taken.items():
            if audience not in self._changed:  # its last page has left meanwhile
                continue
            changed = self._changed[audience]
            changes = Changes(changed.news(job_ids, found), changed.take_more())
            if changes:
                frame = _jobs_frame(changes)
                for watch in self._watches:
                    if watch.audience == audience:
                        watch.deliver_jobs(frame)

    def _beat(self) -> None:
        """Heartbeats in silence, and the end of streams whose time is up."""
        now = asyncio.get_running_loop().time()
        beat = heartbeat()
        for watch in list(self._watches):
            if now - watch.opened >= self._max_life_s:
                watch.end(farewell())
            elif now - watch.spoke >= self._heartbeat_s:
                watch.deliver_notice(beat)


def _point_frame(point: Point) -> Frame:
    position = (point.ts, 0)
    return _frame(format_position(position), FeedEvent.STATS, codec.dumps(point.view()), position)


def _jobs_frame(changes: Changes) -> Frame:
    return _frame("", FeedEvent.JOBS, codec.dumps({"jobs": changes.jobs, "more": changes.more}))


def _frame(
    event_id: str, kind: FeedEvent, data: bytes, position: tuple[int, int] = (0, 0)
) -> Frame:
    name, word = event_id.encode(), kind.value.encode()
    sse = b"%bevent: %b\ndata: %b\n\n" % (b"id: %b\n" % name if name else b"", word, data)
    members = (b'"id":"%b",' % name if name else b"", _TYPE, word, _DATA, data)
    ndjson = b'{%b"%b":"%b","%b":%b}\n' % members
    # A sample is there when its time is over.
    written_ms = position[0] + SECONDS.step_ms if name else 0
    return Frame(event_id, sse, ndjson, kind.value, position, written_ms)


_TYPE: Final = EventField.TYPE.value.encode()
_DATA: Final = EventField.DATA.value.encode()
