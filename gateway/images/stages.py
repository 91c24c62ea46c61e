"""One hub per process: knows where every watched image is, and tells whoever watches it.

Our scripts publish the names of images that changed; the hub then reads just those. What another
pipeline writes is found by looking: often while something happens, less often while nothing does.
All watched images are read together, over the connections that all reads share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from common.cancellation import cancel
from common.codec import text
from common.errors import SluiceError
from common.images.reader import ImageReader
from gateway.frames import farewell, heartbeat
from gateway.images.events import ENDS, Told, gone, told_of, under_way
from gateway.images.stage_watch import StageWatch

log = logging.getLogger(__name__)

#: Images that are read in one go.
AT_ONCE: Final = 256
#: How long to wait between looks: just after a change, and at most; and how that grows.
SHORTEST_LOOK_S, LONGEST_LOOK_S, GROWTH = 0.1, 0.5, 1.5
#: Looks name at most this many images a second.
LOOKS_PER_S: Final = 2000
#: Every so often records are read too: a pipeline may tell of an end by the result stream alone.
RECORDS_EVERY_S: Final = 2.0
RETRY_S: Final = 0.5


class StageHub:
    """Everything about live images in this process."""

    def __init__(
        self,
        reader: ImageReader,
        heartbeat_s: float,
        max_life_s: float,
    ) -> None:
        self._reader = reader
        self._heartbeat_s = heartbeat_s
        self._max_life_s = max_life_s
        self._prefix = reader.keys.status("")
        self._watchers: dict[str, set[StageWatch]] = {}
        self._watches: set[StageWatch] = set()
        self._dirty: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._watched = asyncio.Event()
        #: One look at a time, so that nothing old is told after something new.
        self._looking = asyncio.Lock()
        self._changed = False
        self._versions: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.closing = False

    # -- for routes ------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        """How many watches are open."""
        return len(self._watches)

    async def current(self, image_ids: Sequence[str]) -> list[Told]:
        """Where images are now, one for one; raises StoreUnavailable."""
        found = await self._states(image_ids, records=True)
        waiting = [image_id for image_id in image_ids if image_id not in found]
        if waiting:  # ended, and the record does not know how yet: told when it does
            shown = await self._reader.progress(waiting)
            for image_id, progress in zip(waiting, shown):
                if progress is not None:
                    found[image_id] = under_way(image_id, progress)
        return [found.get(image_id) or gone(image_id) for image_id in image_ids]

    def watch(self, current: Sequence[Told], known: str = "") -> StageWatch:
        """Follow images from a state on; the caller closes the watch.

        `known`: the id of the last event that the client has seen.
        """
        watch = StageWatch(self, current, known)
        self._watches.add(watch)
        for told in current:
            if not told.ended:
                self._watchers.setdefault(told.image_id, set()).add(watch)
                self._dirty[told.image_id] = None  # it may have changed meanwhile
        if self._watchers:
            self._watched.set()
        if self._dirty:
            self._wake.set()
        if self.closing:
            watch.end(farewell())
        return watch

    # -- for watches -----------------------------------------------------------------------

    def forget(self, watch: StageWatch) -> None:
        """The client has left."""
        self._watches.discard(watch)
        for image_id in watch.image_ids:
            watchers = self._watchers.get(image_id)
            if watchers is not None:
                watchers.discard(watch)
                if not watchers:
                    self._drop(image_id)

    # -- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start looking."""
        for role in (self._pump, self._look, self._beat):
            self._tasks.append(asyncio.create_task(role(), name=f"stages{role.__name__}"))

    def say_goodbye(self) -> None:
        """End every stream politely; clients resume elsewhere, or here after a restart."""
        self.closing = True
        last = farewell()
        for watch in list(self._watches):
            watch.end(last)

    async def stop(self) -> None:
        """Stop looking."""
        self.say_goodbye()
        await cancel(*self._tasks)

    def hinted(self, message: bytes) -> None:
        """Images named here have changed."""
        prefix = self._prefix
        for name in text(message).split(" "):
            if name.startswith(prefix) and name[len(prefix) :] in self._watchers:
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
                if not await self._tell(names, records=True):
                    await asyncio.sleep(RETRY_S)
                    self._dirty.update((name, None) for name in names if name in self._watchers)

    async def _look(self) -> None:
        """Look at every watched image, for those who write without a hint."""
        wait_s, loop = SHORTEST_LOOK_S, asyncio.get_running_loop()
        records_at = loop.time()
        while True:
            await self._watched.wait()
            await asyncio.sleep(max(wait_s, len(self._watchers) / LOOKS_PER_S))
            records = loop.time() >= records_at
            if records:
                records_at = loop.time() + RECORDS_EVERY_S
            names, self._changed = list(self._watchers), False
            for start in range(0, len(names), AT_ONCE):
                await self._tell(names[start : start + AT_ONCE], records=records)
            wait_s = SHORTEST_LOOK_S if self._changed else min(wait_s * GROWTH, LONGEST_LOOK_S)

    async def _tell(self, image_ids: Sequence[str], *, records: bool) -> bool:
        """Read images and tell who watches them; whether that could be done."""
        async with self._looking:
            try:
                found = await self._states(image_ids, records=records)
            except Exception as error:  # whatever it is, streams must go on
                unforeseen = not isinstance(error, SluiceError)
                log.warning("image streams wait: %s", error, exc_info=unforeseen)
                return False
            for image_id, told in found.items():
                self._deliver(image_id, told)
        return True

    def _deliver(self, image_id: str, told: Told) -> None:
        watchers = self._watchers.get(image_id)
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
        self._watchers.pop(image_id, None)
        self._versions.pop(image_id, None)
        self._dirty.pop(image_id, None)
        if not self._watchers:
            self._watched.clear()

    async def _states(self, image_ids: Iterable[str], *, records: bool) -> dict[str, Told]:
        """Where images are; without those of which nothing is to be told now.

        `records`: look at every record; else only at those that the status makes necessary.
        """
        ids, found = list(image_ids), dict[str, Told]()
        shown = dict(zip(ids, await self._reader.progress(ids)))
        unsettled = []
        for image_id, progress in shown.items():
            if records or progress is None or progress.stage in ENDS:
                unsettled.append(image_id)
            else:
                found[image_id] = under_way(image_id, progress)
        for image_id, record in zip(unsettled, await self._reader.records(unsettled)):
            told = gone(image_id) if record is None else told_of(record, shown[image_id])
            if told is not None:
                found[image_id] = told
        return found

    async def _beat(self) -> None:
        """Heartbeats in silence, and the end of streams whose time is up."""
        while True:
            await asyncio.sleep(min(1.0, self._heartbeat_s / 4))
            now = asyncio.get_running_loop().time()
            beat = heartbeat()
            for watch in list(self._watches):
                if now - watch.opened >= self._max_life_s:
                    watch.end(farewell())
                elif now - watch.spoke >= self._heartbeat_s:
                    watch.deliver_notice(beat)
