"""One client's view of the images that it watches: where each of them is, whenever that changes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gateway.frames import Frame
from gateway.images.events import Told

if TYPE_CHECKING:
    from gateway.images.stages import StageHub


class StageWatch:
    """Yields the state of each image once, whenever it is another; ends when all have ended.

    A slow client holds nobody up and takes no more memory than a fast one: it is told the last
    state of each image, not all that were.
    """

    def __init__(self, hub: StageHub, current: Sequence[Told], known: str) -> None:
        loop = asyncio.get_running_loop()
        self._hub = hub
        self.image_ids = tuple(told.image_id for told in current)
        #: What the client knows of each image.
        self._known: dict[str, Told | None] = dict.fromkeys(self.image_ids)
        self._open = set(self.image_ids)
        self._waiting: dict[str, Told] = {}
        self._notices: list[Frame] = []
        self._last: Frame | None = None
        self._over = False
        self._waiter: asyncio.Future[None] | None = None
        self.opened = self.spoke = loop.time()
        if known and known == event_id_of(current):
            for told in current:
                self._learned(told)
        else:
            for told in current:
                self.deliver(told)

    # -- for the hub -----------------------------------------------------------------------

    def deliver(self, told: Told) -> None:
        """An image's state, which the client may know already."""
        if told.image_id not in self._open:
            return
        if not told.is_news_after(self._known[told.image_id]):
            self._waiting.pop(told.image_id, None)
            return
        self._waiting[told.image_id] = told
        self._notify()

    def deliver_notice(self, frame: Frame) -> None:
        """Something that is no event of an image."""
        self.spoke = asyncio.get_running_loop().time()
        if not self._waiting and not self._notices:  # a client that lags needs no proof of life
            self._notices.append(frame)
            self._notify()

    def end(self, last: Frame) -> None:
        """End the stream after what waits, with a last word."""
        if self._last is None:
            self._last = last
            self._notify()

    # -- for the route ---------------------------------------------------------------------

    @property
    def live(self) -> bool:
        """Whether what is told happens now: always, since it is no log."""
        return True

    async def next_batch(self) -> list[Frame]:
        """The next frames, as many as there are; empty when the stream is over."""
        while not self._over:
            if self._waiting:
                waiting, self._waiting = self._waiting, {}
                self.spoke = asyncio.get_running_loop().time()
                return [self._frame(told) for told in waiting.values()]
            if not self._open:
                self._over = True
            elif self._notices:
                notices, self._notices = self._notices, []
                return notices
            elif self._last is not None:
                self._over = True
                return [self._last]
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        return []

    def close(self) -> None:
        """The client has left, or the stream is over."""
        self._over = True
        self._hub.forget(self)

    def _frame(self, told: Told) -> Frame:
        self._learned(told)
        known = self._known.values()
        return told.frame(_joined("" if each is None else each.version for each in known))

    def _learned(self, told: Told) -> None:
        self._known[told.image_id] = told
        if told.ended:
            self._open.discard(told.image_id)

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None


def event_id_of(current: Iterable[Told]) -> str:
    """Id of the event with which a client knows all of this."""
    return _joined(told.version for told in current)


def _joined(versions: Iterable[str]) -> str:
    """The state of one image names itself; of many it is a digest of theirs, in their order."""
    found = list(versions)
    if len(found) == 1:
        return found[0]
    return hashlib.blake2b(" ".join(found).encode(), digest_size=12).hexdigest()
