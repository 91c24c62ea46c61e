"""One hub per process: knows where every watched image is, and tells whoever watches it.

Our scripts publish the names of images that changed; the hub then reads just those. What another
pipeline writes is found by looking: often while something happens, less often while nothing does.
All watched images are read together, over the connections that all reads share.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from common.codec import decode_text
from common.errors import SluiceError
from common.features.images.reader import ImageReader
from gateway.events.base import BaseHub, BaseSubscriber
from gateway.events.frames import Frame
from gateway.features.images.events import (
    TERMINAL_STAGES,
    ImageState,
    gone_state,
    image_state,
    in_progress_state,
)


class ImageSubscriber(BaseSubscriber):
    """Yields the state of each image once, whenever it is another; ends when all have ended.

    A slow client holds nobody up and takes no more memory than a fast one: it is told the last
    state of each image, not all that were.
    """

    def __init__(self, hub: ImageHub, current: Sequence[ImageState], known: str) -> None:
        super().__init__(hub)
        self.image_ids = tuple(told.image_id for told in current)
        #: What the client knows of each image.
        self._known: dict[str, ImageState | None] = dict.fromkeys(self.image_ids)
        self._open = set(self.image_ids)
        self._waiting: dict[str, ImageState] = {}
        if known and known == event_id_of(current):
            for told in current:
                self._mark_known(told)
        else:
            for told in current:
                self.deliver(told)

    def deliver(self, told: ImageState) -> None:
        """An image's state, which the client may know already."""
        if told.image_id not in self._open:
            return
        if not told.is_update_to(self._known[told.image_id]):
            self._waiting.pop(told.image_id, None)
            return
        self._waiting[told.image_id] = told
        self._notify()

    def _is_idle(self) -> bool:
        return not self._waiting and not self._queue

    def _take_batch(self) -> list[Frame]:
        if not self._waiting:
            return self._take_queue()
        waiting, self._waiting = self._waiting, {}
        self.last_sent_at = asyncio.get_running_loop().time()
        return [self._frame(told) for told in waiting.values()]

    def _frame(self, told: ImageState) -> Frame:
        self._mark_known(told)
        known = self._known.values()
        return told.frame(_combine_versions("" if each is None else each.version for each in known))

    def _mark_known(self, told: ImageState) -> None:
        self._known[told.image_id] = told
        if told.ended:
            self._open.discard(told.image_id)
        if not self._open:
            self._over = True


def event_id_of(current: Iterable[ImageState]) -> str:
    """Id of the event with which a client knows all of this."""
    return _combine_versions(told.version for told in current)


def _combine_versions(versions: Iterable[str]) -> str:
    """The state of one image names itself; of many it is a digest of theirs, in their order."""
    found = list(versions)
    if len(found) == 1:
        return found[0]
    return hashlib.blake2b(" ".join(found).encode(), digest_size=12).hexdigest()


log = logging.getLogger(__name__)

#: Images that are read in one go.
AT_ONCE: Final = 256
#: How long to wait between looks: just after a change, and at most; and how that grows.
MIN_POLL_S, MAX_POLL_S, GROWTH = 0.1, 0.5, 1.5
#: Looks name at most this many images a second.
POLLS_PER_S: Final = 2000
#: Every so often records are read too: a pipeline may tell of an end by the result stream alone.
RECORDS_EVERY_S: Final = 2.0
RETRY_S: Final = 0.5


class ImageHub(BaseHub[ImageSubscriber]):
    """Everything about live images in this process."""

    def __init__(
        self,
        reader: ImageReader,
        heartbeat_s: float,
        max_life_s: float,
    ) -> None:
        super().__init__(heartbeat_s, max_life_s)
        self._reader = reader
        self._prefix = reader.keys.status("")
        self._subscribers_by_image: dict[str, set[ImageSubscriber]] = {}
        self._dirty: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._watched = asyncio.Event()
        #: One look at a time, so that nothing old is told after something new.
        self._poll_lock = asyncio.Lock()
        self._changed = False
        self._versions: dict[str, str] = {}

    # -- for routes ------------------------------------------------------------------------

    async def current(self, image_ids: Sequence[str]) -> list[ImageState]:
        """Where images are now, one for one; raises StoreUnavailable."""
        found = await self._states(image_ids, records=True)
        waiting = [image_id for image_id in image_ids if image_id not in found]
        if waiting:  # ended, and the record does not know how yet: told when it does
            shown = await self._reader.progress(waiting)
            for image_id, progress in zip(waiting, shown):
                if progress is not None:
                    found[image_id] = in_progress_state(image_id, progress)
        return [found.get(image_id) or gone_state(image_id) for image_id in image_ids]

    def subscribe(self, current: Sequence[ImageState], known: str = "") -> ImageSubscriber:
        """Follow images from a state on; the caller closes the watch.

        `known`: the id of the last event that the client has seen.
        """
        watch = ImageSubscriber(self, current, known)
        self._add(watch)
        for told in current:
            if not told.ended:
                self._subscribers_by_image.setdefault(told.image_id, set()).add(watch)
                self._dirty[told.image_id] = None  # it may have changed meanwhile
        if self._subscribers_by_image:
            self._watched.set()
        if self._dirty:
            self._wake.set()
        return watch

    # -- for watches -----------------------------------------------------------------------

    def forget(self, watch: ImageSubscriber) -> None:
        super().forget(watch)
        for image_id in watch.image_ids:
            watchers = self._subscribers_by_image.get(image_id)
            if watchers is not None:
                watchers.discard(watch)
                if not watchers:
                    self._drop(image_id)

    # -- life ------------------------------------------------------------------------------

    def start(self) -> None:
        for role in (self._pump, self._poll, self._beat):
            self._tasks.append(asyncio.create_task(role(), name=f"stages{role.__name__}"))

    def on_hint(self, message: bytes) -> None:
        prefix = self._prefix
        for name in decode_text(message).split(" "):
            if name.startswith(prefix) and name[len(prefix) :] in self._subscribers_by_image:
                self._dirty[name[len(prefix) :]] = None
        if self._dirty:
            self._wake.set()

    async def _pump(self) -> None:
        """Read what is marked, at once; what is marked meanwhile is read together next."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._dirty:
                names = list(islice(self._dirty, AT_ONCE))
                for name in names:
                    del self._dirty[name]
                if not await self._publish(names, records=True):
                    await asyncio.sleep(RETRY_S)
                    self._dirty.update(
                        (name, None) for name in names if name in self._subscribers_by_image
                    )

    async def _poll(self) -> None:
        """Look at every watched image, for those who write without a hint."""
        wait_s, loop = MIN_POLL_S, asyncio.get_running_loop()
        records_at = loop.time()
        while True:
            await self._watched.wait()
            await asyncio.sleep(max(wait_s, len(self._subscribers_by_image) / POLLS_PER_S))
            records = loop.time() >= records_at
            if records:
                records_at = loop.time() + RECORDS_EVERY_S
            names, self._changed = list(self._subscribers_by_image), False
            for start in range(0, len(names), AT_ONCE):
                await self._publish(names[start : start + AT_ONCE], records=records)
            wait_s = MIN_POLL_S if self._changed else min(wait_s * GROWTH, MAX_POLL_S)

    async def _publish(self, image_ids: Sequence[str], *, records: bool) -> bool:
        """Read images and tell who watches them; whether that could be done."""
        async with self._poll_lock:
            try:
                found = await self._states(image_ids, records=records)
            except Exception as error:  # whatever it is, streams must go on
                unforeseen = not isinstance(error, SluiceError)
                log.warning("image streams wait: %s", error, exc_info=unforeseen)
                return False
            for image_id, told in found.items():
                self._deliver(image_id, told)
        return True

    def _deliver(self, image_id: str, told: ImageState) -> None:
        watchers = self._subscribers_by_image.get(image_id)
        if watchers is None:
            return
        if self._versions.get(image_id) != told.version:
            self._versions[image_id] = told.version
            self._changed = True
        for watch in list(watchers):
            watch.deliver(told)
        if told.ended:
            self._drop(image_id)

    def _drop(self, image_id: str) -> None:
        self._subscribers_by_image.pop(image_id, None)
        self._versions.pop(image_id, None)
        self._dirty.pop(image_id, None)
        if not self._subscribers_by_image:
            self._watched.clear()

    async def _states(self, image_ids: Iterable[str], *, records: bool) -> dict[str, ImageState]:
        """Where images are; without those of which nothing is to be told now.

        `records`: look at every record; else only at those that the status makes necessary.
        """
        ids, found = list(image_ids), dict[str, ImageState]()
        shown = dict(zip(ids, await self._reader.progress(ids)))
        unsettled = []
        for image_id, progress in shown.items():
            if records or progress is None or progress.stage in TERMINAL_STAGES:
                unsettled.append(image_id)
            else:
                found[image_id] = in_progress_state(image_id, progress)
        for image_id, record in zip(unsettled, await self._reader.records(unsettled)):
            told = gone_state(image_id) if record is None else image_state(record, shown[image_id])
            if told is not None:
                found[image_id] = told
        return found
