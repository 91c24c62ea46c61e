"""One client's view of one job's events: first what is stored, then what happens live."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from common.errors import StoreUnavailable
from gateway.events.base import BaseSubscriber
from gateway.events.frames import Frame, Source

if TYPE_CHECKING:
    from gateway.events.hub import EventHub

log = logging.getLogger(__name__)

#: Seconds until history is asked for again after a fault.
RETRY_S = 0.5
#: A stream id as a comparable pair.
Position = tuple[int, int]

#: Bytes queued for a client that reads slowly; beyond, it falls back to reading from Redis.
MAX_QUEUED_BYTES = 256 * 1024


def format_position(position: Position) -> str:
    return f"{position[0]}-{position[1]}"


class EventSubscriber(BaseSubscriber):
    """Yields every event after a position once, in order, and ends after one that ends its job.

    A slow client never holds up the others: when its queue is full it is taken off the live
    feed, the queue is forgotten, and it goes on from Redis where it stopped.
    """

    _hub: EventHub

    def __init__(
        self, hub: EventHub, source: Source, after: Position, *, ended: bool = False
    ) -> None:
        super().__init__(hub)
        self.source = source
        #: Nothing comes after what is stored; or after what was handed out last.
        self._ended = ended
        self._at_end = False
        #: The last event handed to the client.
        self.position = after
        self._queued_position = after
        self._live = False
        self._check_gap = True

    def deliver(self, frames: list[Frame]) -> None:
        """Queue live events the client has not got yet."""
        wanted = self.source.accepts
        for frame in frames:
            if frame.position > self._queued_position:
                self._queued_position = frame.position
                if wanted is None or wanted(frame):
                    self._queue.append(frame)
                    self._queued_bytes += len(frame.sse)
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self._fall_back()
        self._notify()

    def _take_batch(self) -> list[Frame]:
        return self._mark_delivered(self._take_queue()) if self._queue else []

    async def _load(self) -> list[Frame]:
        """A stream that has begun outlasts a Redis that is away for a while."""
        try:
            batch = await self._catch_up()
        except StoreUnavailable as error:
            log.info("history of %s waits: %s", self.source.name, error)
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
            # Others were given events that are not there any more: go on where they are.
            self.position = max(self.position, ahead)
            if self._hub.attach(self):
                self._live = True
                self._queued_position = self.position
        elif self.source.accepts is not None:
            self.position = batch[-1].position  # what is not wanted is not looked at again
            return list(filter(self.source.accepts, batch))
        return batch

    def _mark_delivered(self, batch: list[Frame]) -> list[Frame]:
        self.last_sent_at = asyncio.get_running_loop().time()
        ending = self.source.ending
        # In the history of a job that was taken up again, more may follow an end.
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
