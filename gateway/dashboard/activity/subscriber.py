"""A subscriber of the live feed: history points and job changes for one client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluice.common.contracts.jobs import FrameType
from sluice.common.contracts.stats import ONE_SECOND
from sluice.gateway.events.base import BaseSubscriber
from sluice.gateway.events.frames import Frame, notice_frame
from sluice.gateway.events.subscriber import MAX_QUEUED_BYTES, format_position

if TYPE_CHECKING:
    from sluice.gateway.dashboard.activity.feed import ActivityFeed


class ActivitySubscriber(BaseSubscriber):
    """Yields frames in order. A client that reads too slowly gets a `gap` frame and does not hold
    up others."""

    _hub: ActivityFeed

    def __init__(self, feed: ActivityFeed, audience: str | None, after: int | None) -> None:
        super().__init__(feed)
        #: Audience whose job changes it receives; None for no jobs.
        self.audience = audience
        #: Time of the last queued point, in Unix milliseconds; None for no points.
        self.after = after
        #: Time of the last point that was sent to the client.
        self._sent = 0 if after is None else after

    def deliver_points(self, frames: Sequence[Frame]) -> None:
        """Queue points, given in order; those it already has are skipped."""
        if self.after is None:
            return
        new_frames = [frame for frame in frames if frame.position[0] > self.after]
        if new_frames:
            self.after = new_frames[-1].position[0]
            self._deliver(new_frames)

    def clamp_to(self, newest: int) -> None:
        """Move back to the newest point if it is older: the clock was set back, and points with
        earlier times follow."""
        if self.after is not None and self.after > newest:
            self.after = self._sent = newest - ONE_SECOND.step_ms

    def deliver_jobs(self, frame: Frame) -> None:
        self._deliver([frame])

    def queue_gap(self, begin: int, end: int) -> None:
        """Report that the points between two times are not available."""
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
