"""Base classes of event hubs and their subscribers: queueing, heartbeats and shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from sluice.common.aio import cancel
from sluice.gateway.events.frames import Frame, heartbeat_frame, shutdown_frame


class BaseSubscriber:
    """One client's open stream: a queue of frames that the hub fills.

    A subclass fills `_queue` and calls `_notify`, or overrides `_take_batch`. One that reads stored
    events first sets `_live` to False and overrides `_load`.
    """

    def __init__(self, hub: BaseHub[Any]) -> None:
        self._hub = hub
        self._queue: list[Frame] = []
        self._queued_bytes = 0
        #: Final frame; sent after all queued frames, then the stream ends.
        self._last: Frame | None = None
        self._live = True
        self._over = False
        self._waiter: asyncio.Future[None] | None = None
        self.opened_at = self.last_sent_at = asyncio.get_running_loop().time()

    # -- for the hub -----------------------------------------------------------------------

    def deliver_notice(self, frame: Frame) -> None:
        """Queue a frame that is not an event, such as a heartbeat."""
        self.last_sent_at = asyncio.get_running_loop().time()
        if self._is_idle():  # a client with queued frames needs no heartbeat
            self._queue.append(frame)
            self._notify()

    def end(self, last: Frame) -> None:
        """End the stream with this frame, after the queued ones."""
        if self._last is None:
            self._last = last
            self._notify()

    # -- for the route ---------------------------------------------------------------------

    @property
    def live(self) -> bool:
        """True if it receives events as they happen, false while it reads stored ones."""
        return self._live

    async def next_batch(self) -> list[Frame]:
        """Wait for frames and return all that are queued; empty when the stream is over."""
        while not self._over:
            if batch := self._take_batch():
                return batch
            if self._last is not None:
                self._over = True
                return [self._last]
            if self._live:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            elif batch := await self._load():
                return batch
        return []

    def close(self) -> None:
        """Unsubscribe, because the client has disconnected or the stream is over."""
        self._over = True
        self._hub.forget(self)

    # -- for subclasses --------------------------------------------------------------------

    def _is_idle(self) -> bool:
        return not self._queue

    def _take_batch(self) -> list[Frame]:
        """The frames that can be sent now; may be empty."""
        batch = self._take_queue()
        if batch:
            self.last_sent_at = asyncio.get_running_loop().time()
        return batch

    def _take_queue(self) -> list[Frame]:
        batch, self._queue = self._queue, []
        self._queued_bytes = 0
        return batch

    async def _load(self) -> list[Frame]:
        """The next stored frames, for a subscriber that is not live; may be empty."""
        raise NotImplementedError

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None


_Subscriber = TypeVar("_Subscriber", bound=BaseSubscriber)


class BaseHub(Generic[_Subscriber]):
    """The open streams of one kind in this process."""

    def __init__(self, heartbeat_s: float, max_life_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._max_life_s = max_life_s
        self._subscribers: set[_Subscriber] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.closing = False

    @property
    def clients(self) -> int:
        return len(self._subscribers)

    def forget(self, watch: _Subscriber) -> None:
        self._subscribers.discard(watch)

    def close_streams(self) -> None:
        """End every stream with a last frame; clients resume at another gateway, or at this one
        after a restart."""
        self.closing = True
        last = shutdown_frame()
        for watch in list(self._subscribers):
            watch.end(last)

    async def stop(self) -> None:
        """End every stream and every task of the hub."""
        self.close_streams()
        await cancel(*self._tasks)

    # -- for subclasses --------------------------------------------------------------------

    def _add(self, watch: _Subscriber) -> None:
        self._subscribers.add(watch)
        if self.closing:
            watch.end(shutdown_frame())

    async def _beat(self) -> None:
        """Send heartbeats and end streams that reached their maximum age, until stopped."""
        while True:
            await asyncio.sleep(min(1.0, self._heartbeat_s / 4))
            self._check_idle(self._send_heartbeats())

    def _send_heartbeats(self) -> list[_Subscriber]:
        """Send a heartbeat to idle streams, and end streams that reached their maximum age.

        Returns the subscribers that got a heartbeat.
        """
        now = asyncio.get_running_loop().time()
        beat = heartbeat_frame()
        idle: list[_Subscriber] = []
        for watch in list(self._subscribers):
            if now - watch.opened_at >= self._max_life_s:
                watch.end(shutdown_frame())
            elif now - watch.last_sent_at >= self._heartbeat_s:
                watch.deliver_notice(beat)
                idle.append(watch)
        return idle

    def _check_idle(self, idle: Sequence[_Subscriber]) -> None:
        """Called with the subscribers that got a heartbeat. Does nothing by default."""
