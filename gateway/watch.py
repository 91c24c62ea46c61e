"""One client's view of one job's events: first what is stored, then what happens live."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from common.errors import StoreUnavailable
from gateway.frames import Frame
from gateway.sources import Source

if TYPE_CHECKING:
    from gateway.tail import Hub

log = logging.getLogger(__name__)

#: Seconds until history is asked for again after a fault.
RETRY_S = 0.5
#: A stream id as a comparable pair.
Position = tuple[int, int]

#: Bytes queued for a client that reads slowly; beyond, it falls back to reading from Redis.
MAX_QUEUED_BYTES = 256 * 1024


def format_position(position: Position) -> str:
    """The stream id again."""
    return f"{position[0]}-{position[1]}"


class Watch:
    """Yields every event after a position once, in order, and ends after one that ends its job.

    A slow client never holds up the others: when its queue is full it is taken off the live
    feed, the queue is forgotten, and it goes on from Redis where it stopped.
    """

    def __init__(self, hub: Hub, source: Source, after: Position, *, ended: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self._hub = hub
        self.source = source
        #: Nothing comes after what is stored; or after what was handed out last.
        self._ended = ended
        self._at_end = False
        #: The last event handed to the client.
        self.position = after
        self._queue: list[Frame] = []
        self._queued_bytes = 0
        self._queued_position = after
        self._last: Frame | None = None
        self._live = False
        self._check_gap = True
        self._over = False
        self._waiter: asyncio.Future[None] | None = None
        self.opened = self.spoke = loop.time()

    # -- for the hub -----------------------------------------------------------------------

    def deliver(self, frames: list[Frame]) -> None:
        """Queue live events the client has not got yet."""
        wanted = self.source.wanted
        for frame in frames:
            if frame.position > self._queued_position:
                self._queued_position = frame.position
                if wanted is None or wanted(frame):
                    self._queue.append(frame)
                    self._queued_bytes += len(frame.sse)
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self._fall_back()
        self._notify()

    def deliver_notice(self, frame: Frame) -> None:
        """Queue something that is no event of the job."""
        self.spoke = asyncio.get_running_loop().time()
        if not self._queue:  # a client that lags needs no proof of life
            self._queue.append(frame)
            self._notify()

    def end(self, last: Frame) -> None:
        """End the stream after what is queued, with a last word."""
        if self._last is None:
            self._last = last
            self._notify()

    # -- for the route ---------------------------------------------------------------------

    @property
    def live(self) -> bool:
        """Whether it gets events as they happen."""
        return self._live

    async def next_batch(self) -> list[Frame]:
        """The next frames, as many as there are; empty when the stream is over."""
        while not self._over:
            if self._queue:
                return self._taken(self._take_queue())
            if self._last is not None:
                self._over = True
                return [self._last]
            if not self._live:
                batch = await self._catch_up_patiently()
                if batch:
                    return self._taken(batch)
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        return []

    def close(self) -> None:
        """The client has left, or the stream is over."""
        self._over = True
        self._hub.forget(self)

    async def _catch_up_patiently(self) -> list[Frame]:
        """A stream that has begun outlasts a Redis that is away for a while."""
        try:
            return await self._catch_up()
        except StoreUnavailable as error:
            log.info("history of %s waits: %s", self.source.name, error)
            self._check_gap = True
            await asyncio.sleep(RETRY_S)
            return []

    async def _catch_up(self) -> list[Frame]:
        """One page from Redis; goes live when it was the last one."""
        if self._check_gap:
            self._check_gap = False
            gap = await self._hub.gap_after(self.source, self.position)
            if gap is not None:
                self._hub.numbers.gaps += 1
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
        elif self.source.wanted is not None:
            self.position = batch[-1].position  # what is not wanted is not looked at again
            return list(filter(self.source.wanted, batch))
        return batch

    def _take_queue(self) -> list[Frame]:
        batch, self._queue = self._queue, []
        self._queued_bytes = 0
        return batch

    def _taken(self, batch: list[Frame]) -> list[Frame]:
        self.spoke = asyncio.get_running_loop().time()
        ending = self.source.ending
        # In the history of a job that was taken up again, more may follow an end.
        final = self._live or not self.source.goes_on
        for index, frame in enumerate(batch):
            if frame.id:
                self.position = max(self.position, frame.position)
                self._at_end = frame.type in ending
                if self._at_end and final:
                    self._over = True
                    return batch[: index + 1]
        return batch

    def _fall_back(self) -> None:
        self._hub.numbers.slow += 1
        self._hub.detach(self)
        self._live = False
        self._check_gap = True
        self._take_queue()

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None
