"""One page's view of what goes on: points of the history, and jobs that change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from common.contracts.jobs import FrameType
from common.contracts.stats import ONE_SECOND
from gateway.events.base import BaseSubscriber
from gateway.events.frames import Frame, notice_frame
from gateway.events.subscriber import MAX_QUEUED_BYTES, format_position

if TYPE_CHECKING:
    from gateway.dashboard.activity.feed import ActivityFeed


class ActivitySubscriber(BaseSubscriber):
    """Yields what it is given, in order. A page that reads slowly is told that it has missed
    something, and holds up nobody."""

    _hub: ActivityFeed

    def __init__(self, feed: ActivityFeed, audience: str | None, after: int | None) -> None:
        super().__init__(feed)
        #: Whose jobs it is told of; None for nobody's.
        self.audience = audience
        #: The last point it was given, by its time; None where it is to get none.
        self.after = after
        #: The last one that went to the client.
        self._sent = 0 if after is None else after

    def deliver_points(self, frames: Sequence[Frame]) -> None:
        """Points in order, some of which it may have had."""
        if self.after is None:
            return
        news = [frame for frame in frames if frame.position[0] > self.after]
        if news:
            self.after = news[-1].position[0]
            self._deliver(news)

    def clamp_to(self, newest: int) -> None:
        """The last point that there is: a clock that went back makes new ones of older times."""
        if self.after is not None and self.after > newest:
            self.after = self._sent = newest - ONE_SECOND.step_ms

    def deliver_jobs(self, frame: Frame) -> None:
        self._deliver([frame])

    def queue_gap(self, begin: int, end: int) -> None:
        """What lies between two points is not to be had here."""
        missed: dict[str, object] = {
            "from": format_position((begin, 0)),
            "to": format_position((end, 0)),
        }
        self._queue.append(notice_frame(FrameType.GAP, missed))
        self._notify()

    def _deliver(self, frames: list[Frame]) -> None:
        self._queue += frames
        self._queued_bytes += sum(len(frame.sse) for frame in frames)
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self._hub.slow()
            self._take_queue()
            self.queue_gap(self._sent, self.after or 0)
        self._notify()

    def _take_batch(self) -> list[Frame]:
        batch = super()._take_batch()
        if batch:
            self._sent = max(self._sent, *(frame.position[0] for frame in batch))
        return batch
