"""One client's stream of one job's events: first the stored events, then live ones."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from sluice.common.errors import StoreUnavailable
from sluice.gateway.events.base import BaseSubscriber
from sluice.gateway.events.frames import Frame, Source

if TYPE_CHECKING:
    from sluice.gateway.events.hub import EventHub

log = logging.getLogger(__name__)

#: Seconds before stored events are read again after an error.
RETRY_S = 0.5
#: A stream id as a comparable pair.
Position = tuple[int, int]

#: Maximum number of bytes queued for a slow client; beyond it, the client reads from Redis again.
MAX_QUEUED_BYTES = 256 * 1024


def format_position(position: Position) -> str:
    return f"{position[0]}-{position[1]}"


class EventSubscriber(BaseSubscriber):
    """Yields every event after a position once, in order, and ends after the job's final event.

    A slow client never delays others: when its queue is full, the subscriber leaves live delivery,
    drops the queue and continues from Redis where the client stopped.
    """

    _hub: EventHub

    def __init__(
        self, hub: EventHub, source: Source, after: Position, *, ended: bool = False
    ) -> None:
        super().__init__(hub)
        self.source = source
        #: `_ended`: no events follow the stored ones. `_at_end`: the last event sent was final.
        self._ended = ended
        self._at_end = False
        #: Position of the last event sent to the client.
        self.position = after
        self._queued_position = after
        self._live = False
        self._check_gap = True

    def deliver(self, frames: list[Frame]) -> None:
        """Queue live events that the client does not have yet."""
        accepts = self.source.accepts
        for frame in frames:
            if frame.position > self._queued_position:
                self._queued_position = frame.position
                if accepts is None or accepts(frame):
                    self._queue.append(frame)
                    self._queued_bytes += len(frame.sse)
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self._fall_back()
        self._notify()

    def _take_batch(self) -> list[Frame]:
        return self._mark_delivered(self._take_queue()) if self._queue else []

    async def _load(self) -> list[Frame]:
        """Read stored events; while Redis is unreachable the open stream waits and retries."""
        try:
            batch = await self._catch_up()
        except StoreUnavailable as error:
            log.info(
                "stream %s: reading stored events failed, retrying: %s", self.source.name, error
            )
            self._check_gap = True
            await asyncio.sleep(RETRY_S)
            return []
        return self._mark_delivered(batch) if batch else batch

    async def _catch_up(self) -> list[Frame]:
        """One page from Redis; goes live when it was the last one."""
        if self._check_gap:
            self._check_gap = False
            gap = await self._hub.gap_after(self.source, self.position)
            if gap is not None:
                self._hub.metrics.gaps += 1
                return [gap]
        ahead = self._hub.read_position(self.source)
        batch = await self._hub.page(self.source, self.position)
        if not batch and (self._ended or self._at_end):
            self._over = True
        elif not batch:
            # Live subscribers already got events that were trimmed since: continue after those.
            self.position = max(self.position, ahead)
            if self._hub.attach(self):
                self._live = True
                self._queued_position = self.position
        elif self.source.accepts is not None:
            self.position = batch[-1].position  # do not read rejected frames again
            return list(filter(self.source.accepts, batch))
        return batch

    def _mark_delivered(self, batch: list[Frame]) -> list[Frame]:
        self.last_sent_at = asyncio.get_running_loop().time()
        ending = self.source.ending
        # In the history of a resumed job, events may follow a final one.
        final = self._live or not self.source.may_continue
        for index, frame in enumerate(batch):
            if frame.id:
                self.position = max(self.position, frame.position)
                self._at_end = frame.type in ending
                if self._at_end and final:
                    self._over = True
                    return batch[: index + 1]
        return batch

    def _fall_back(self) -> None:
        self._hub.metrics.slow += 1
        self._hub.detach(self)
        self._live = False
        self._check_gap = True
        self._take_queue()
