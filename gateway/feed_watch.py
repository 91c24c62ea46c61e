"""One page's view of what goes on: points of the history, and jobs that change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from common.contracts.jobs import FrameType
from common.contracts.stats import SECONDS
from gateway.frames import Frame, notice
from gateway.watch import MAX_QUEUED_BYTES, format_position

if TYPE_CHECKING:
    from gateway.feed import Feed


class FeedWatch:
    """Yields what it is given, in order. A page that reads slowly is told that it has missed
    something, and holds up nobody."""

    def __init__(self, feed: Feed, audience: str | None, after: int | None) -> None:
        loop = asyncio.get_running_loop()
        self._feed = feed
        #: Whose jobs it is told of; None for nobody's.
        self.audience = audience
        #: The last point it was given, by its time; None where it is to get none.
        self.after = after
        #: The last one that went to the client.
        self._sent = 0 if after is None else after
        self._queue: list[Frame] = []
        self._queued_bytes = 0
        self._last: Frame | None = None
        self._over = False
        self._waiter: asyncio.Future[None] | None = None
        self.opened = self.spoke = loop.time()

    # -- for the feed ----------------------------------------------------------------------

    def deliver_points(self, frames: Sequence[Frame]) -> None:
        """Points in order, some of which it may have had."""
        if self.after is None:
            return
        news = [frame for frame in frames if frame.position[0] > self.after]
        if news:
            self.after = news[-1].position[0]
            self._deliver(news)

    def not_after(self, newest: int) -> None:
        """The last point that there is: a clock that went back makes new ones of older times."""
        if self.after is not None and self.after > newest:
            self.after = self._sent = newest - SECONDS.step_ms

    def deliver_jobs(self, frame: Frame) -> None:
        """Jobs that have changed."""
        self._deliver([frame])

    def deliver_notice(self, frame: Frame) -> None:
        """Proof of life; a page that lags needs none."""
        self.spoke = asyncio.get_running_loop().time()
        if not self._queue:
            self._queue.append(frame)
            self._notify()

    def miss(self, begin: int, end: int) -> None:
        """What lies between two points is not to be had here."""
        missed: dict[str, object] = {
            "from": format_position((begin, 0)),
            "to": format_position((end, 0)),
        }
        self._queue.append(notice(FrameType.GAP, missed))
        self._notify()

    def end(self, last: Frame) -> None:
        """End the stream after what is queued, with a last word."""
        if self._last is None:
            self._last = last
            self._notify()

    def _deliver(self, frames: list[Frame]) -> None:
        self._queue += frames
        self._queued_bytes += sum(len(frame.sse) for frame in frames)
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self._feed.slow()
            self._queue, self._queued_bytes = [], 0
            self.miss(self._sent, self.after or 0)
        self._notify()

    # -- for the route ---------------------------------------------------------------------

    @property
    def live(self) -> bool:
        """Whether what is told happens now: always, but for what a page missed meanwhile."""
        return True

    async def next_batch(self) -> list[Frame]:
        """The next frames, as many as there are; empty when the stream is over."""
        while not self._over:
            if self._queue:
                batch, self._queue, self._queued_bytes = self._queue, [], 0
                self.spoke = asyncio.get_running_loop().time()
                self._sent = max(self._sent, *(frame.position[0] for frame in batch))
                return batch
            if self._last is not None:
                self._over = True
                return [self._last]
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return []

    def close(self) -> None:
        """The page has left, or the stream is over."""
        self._over = True
        self._feed.forget(self)

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None
