"""The image hub: one per process, delivers the states of watched images to their subscribers.

Sluice's scripts publish the ids of changed images; the hub then reads those. Changes by
third-party pipelines are found by polling: more often after a change, less often without. All
watched images are read in batches.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from sluice.common.codec import decode_text
from sluice.common.errors import SluiceError
from sluice.common.features.images.reader import ImageReader
from sluice.gateway.events.base import BaseHub, BaseSubscriber
from sluice.gateway.events.frames import Frame
from sluice.gateway.features.images.events import (
    TERMINAL_STAGES,
    ImageState,
    gone_state,
    image_state,
    in_progress_state,
)


class ImageSubscriber(BaseSubscriber):
    """Yields the state of each image whenever it changes; ends when all images have ended.

    A slow client delays no other and needs no more memory: it gets the latest state of each
    image, not every state.
    """

    def __init__(self, hub: ImageHub, current: Sequence[ImageState], known: str) -> None:
        super().__init__(hub)
        self.image_ids = tuple(state.image_id for state in current)
        #: The state that the client knows, by image.
        self._known: dict[str, ImageState | None] = dict.fromkeys(self.image_ids)
        self._open = set(self.image_ids)
        self._waiting: dict[str, ImageState] = {}
        if known and known == event_id_of(current):
            for state in current:
                self._mark_known(state)
        else:
            for state in current:
                self.deliver(state)

    def deliver(self, state: ImageState) -> None:
        """Queue the state of an image, unless the client knows it already."""
        if state.image_id not in self._open:
            return
        if not state.is_update_to(self._known[state.image_id]):
            self._waiting.pop(state.image_id, None)
            return
        self._waiting[state.image_id] = state
        self._notify()

    def _is_idle(self) -> bool:
        return not self._waiting and not self._queue

    def _take_batch(self) -> list[Frame]:
        if not self._waiting:
            return self._take_queue()
        waiting, self._waiting = self._waiting, {}
        self.last_sent_at = asyncio.get_running_loop().time()
        return [self._frame(state) for state in waiting.values()]

    def _frame(self, state: ImageState) -> Frame:
        self._mark_known(state)
        known = self._known.values()
        return state.frame(
            _combine_versions("" if each is None else each.version for each in known)
        )

    def _mark_known(self, state: ImageState) -> None:
        self._known[state.image_id] = state
        if state.ended:
            self._open.discard(state.image_id)
        if not self._open:
            self._over = True


def event_id_of(current: Iterable[ImageState]) -> str:
    """The event id of a client that knows these states."""
    return _combine_versions(state.version for state in current)


def _combine_versions(versions: Iterable[str]) -> str:
    """The version of one image, or a digest of the versions of several, in order."""
    found = list(versions)
    if len(found) == 1:
        return found[0]
    return hashlib.blake2b(" ".join(found).encode(), digest_size=12).hexdigest()


log = logging.getLogger(__name__)

#: Images read in one batch.
AT_ONCE: Final = 256
#: Seconds between polls after a change, and at most; and the growth factor.
MIN_POLL_S, MAX_POLL_S, GROWTH = 0.1, 0.5, 1.5
#: Most images polled per second.
POLLS_PER_S: Final = 2000
#: Seconds between polls of records: a pipeline may write its result to the result stream only.
RECORDS_EVERY_S: Final = 2.0
RETRY_S: Final = 0.5


class ImageHub(BaseHub[ImageSubscriber]):
    """Delivers the states of images to all subscribers of this process."""

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
        #: One read at a time, so that states are delivered in order.
        self._poll_lock = asyncio.Lock()
        self._changed = False
        self._versions: dict[str, str] = {}

    # -- for routes ------------------------------------------------------------------------

    async def current(self, image_ids: Sequence[str]) -> list[ImageState]:
        """The current state of each image; raises StoreUnavailable."""
        found = await self._states(image_ids, records=True)
        waiting = [image_id for image_id in image_ids if image_id not in found]
        if waiting:  # ended, but the record does not have the result yet
            shown = await self._reader.progress(waiting)
            for image_id, progress in zip(waiting, shown):
                if progress is not None:
                    found[image_id] = in_progress_state(image_id, progress)
        return [found.get(image_id) or gone_state(image_id) for image_id in image_ids]

    def subscribe(self, current: Sequence[ImageState], known: str = "") -> ImageSubscriber:
        """Subscribe to images from a state on; the caller closes the subscriber.

        `known`: the id of the last event that the client has received.
        """
        subscriber = ImageSubscriber(self, current, known)
        self._add(subscriber)
        for state in current:
            if not state.ended:
                self._subscribers_by_image.setdefault(state.image_id, set()).add(subscriber)
                self._dirty[state.image_id] = None  # it may have changed meanwhile
        if self._subscribers_by_image:
            self._watched.set()
        if self._dirty:
            self._wake.set()
        return subscriber

    # -- for subscribers -------------------------------------------------------------------

    def forget(self, subscriber: ImageSubscriber) -> None:
        super().forget(subscriber)
        for image_id in subscriber.image_ids:
            watchers = self._subscribers_by_image.get(image_id)
            if watchers is not None:
                watchers.discard(subscriber)
                if not watchers:
                    self._drop(image_id)

    # -- background tasks ------------------------------------------------------------------

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
        """Read changed images at once; those that change meanwhile form the next batch."""
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
        """Read every watched image periodically: some pipelines publish no hint."""
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
        """Read images and deliver their states; False if Redis failed."""
        async with self._poll_lock:
            try:
                found = await self._states(image_ids, records=records)
            except Exception as error:  # the loop must continue
                unforeseen = not isinstance(error, SluiceError)
                log.warning("image states not read, streams wait: %s", error, exc_info=unforeseen)
                return False
            for image_id, state in found.items():
                self._deliver(image_id, state)
        return True

    def _deliver(self, image_id: str, state: ImageState) -> None:
        watchers = self._subscribers_by_image.get(image_id)
        if watchers is None:
            return
        if self._versions.get(image_id) != state.version:
            self._versions[image_id] = state.version
            self._changed = True
        for subscriber in list(watchers):
            subscriber.deliver(state)
        if state.ended:
            self._drop(image_id)

    def _drop(self, image_id: str) -> None:
        self._subscribers_by_image.pop(image_id, None)
        self._versions.pop(image_id, None)
        self._dirty.pop(image_id, None)
        if not self._subscribers_by_image:
            self._watched.clear()

    async def _states(self, image_ids: Iterable[str], *, records: bool) -> dict[str, ImageState]:
        """The states of images, without those whose result is not known yet.

        `records`: read every record; otherwise only if the status requires it.
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
            state = gone_state(image_id) if record is None else image_state(record, shown[image_id])
            if state is not None:
                found[image_id] = state
        return found
