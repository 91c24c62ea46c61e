"""Everything of images in a worker: started with it, kept going, closed with it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from common.connection import TRANSIENT_ERRORS
from common.contracts.images import IMAGE_TOOL
from common.contracts.workers import WorkerField
from common.errors import SettingsError, SluiceError
from common.images.reader import ImageReader
from common.images.storage_choice import spool_of, storage_of
from worker.compute.pool import Pool, cores
from worker.context import JobContext
from worker.images.detect.choice import choose
from worker.images.detect.trial import Trial
from worker.images.ending import Ending
from worker.images.leftovers import Leftovers
from worker.images.numbers import Numbers
from worker.images.pixels import Limits
from worker.images.pixels.availability import missing
from worker.images.reconciler import Reconciler
from worker.images.sweeping import Sweeper
from worker.outcome import Outcome
from worker.registry import Registry
from worker.services import House, Service

if TYPE_CHECKING:
    from common.settings import WorkerSettings
    from worker.images.processing import Processor

log = logging.getLogger(__name__)

#: A process is replaced after so many images: what libraries leave lying about goes with it.
CALLS: Final = 50
#: Jobs that may run beside those that have a process: they read, write to the store, or are next.
#: All others wait where any worker may take them, and leave this one's places to other tasks.
BESIDE: Final = 2
#: Not all workers come at the same time: each waits up to a fifth longer.
SPREAD: Final = 0.2
_TROUBLE: Final = (RedisError, SluiceError, OSError, *TRANSIENT_ERRORS)


class ImageService(Service):
    """Processes images, and looks after them."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self.parallel = settings.image_parallel or cores()
        self.pool = Pool(
            self.parallel, memory_bytes=settings.image_memory_mb << 20, most_calls=CALLS
        )
        self.trial = Trial(self.pool, choose(settings), settings)
        self.storage = storage_of(settings)
        self.spool = spool_of(settings)
        self.numbers = Numbers(self.parallel)
        try:
            self._limits = Limits.of(settings)
        except ValueError as error:
            raise SettingsError(f"IMAGE_FORMATS={settings.image_formats!r}: {error}") from None

    async def start(self, house: House) -> None:
        """Know the house; raises SettingsError where somebody named cannot look at images."""
        if lacking := missing(self._limits.formats):
            log.warning("images fail until it is there: %s", lacking)
        store, reader = house.images, ImageReader(house.redis, house.images.keys)
        self.leftovers = Leftovers(self.storage, reader)
        await self.trial.start()
        self._store, self._reader = store, reader
        self.ending = Ending(store, self.spool, self.numbers, self.leftovers)
        self.reconciler = Reconciler(
            house.redis,
            house.keys,
            store,
            reader,
            self.spool,
            self.ending,
            self._settings.image_reconcile_s,
        )
        self.sweeper = Sweeper(house.redis, reader, self.spool, self.storage)
        house.limits.set_places([IMAGE_TOOL], self.parallel + BESIDE)
        house.telling[WorkerField.IMAGES.value] = lambda: self.numbers.reading(self.trial.choice)

    async def run(self) -> None:
        """Look after everything every so often, until canceled."""
        await _tried(self.sweeper.begin)
        while True:
            every_s = self._settings.image_reconcile_s
            await asyncio.sleep(every_s * random.uniform(1.0, 1.0 + SPREAD))
            await _tried(self.run_once)

    async def run_once(self) -> None:
        """One look, if it is our turn."""
        if await self.reconciler.is_our_turn():
            await _tried(self.reconciler.run_once)
            await _tried(self.sweeper.run_once)

    async def close(self) -> None:
        """End the processes."""
        await self.trial.close()
        await self.leftovers.close()
        await self.pool.close()
        await self.storage.close()

    @cached_property
    def processor(self) -> Processor:
        """Who processes them; imported by the first image."""
        from worker.images.processing import Means, Processor

        return Processor(
            Means(
                self._store,
                self._reader,
                self.spool,
                self.storage,
                self.pool,
                self.trial,
                self._limits,
                self._settings.image_timeout_s,
                self.numbers,
                self.leftovers,
            )
        )

    # -- internal tool ---------------------------------------------------------------------

    async def process(self, context: JobContext, args: dict[str, Any]) -> dict[str, Any] | None:
        """The tool `image.process`."""
        return await self.processor.process(context, args)

    async def ended(
        self, context: JobContext, args: Mapping[str, Any], outcome: Outcome, error: bytes
    ) -> None:
        """The core job of an image ended badly."""
        await self.ending.ended(context, args, outcome, error)


def register(registry: Registry, settings: WorkerSettings) -> None:
    """Let `registry` process images; raises SettingsError for what is named and missing."""
    service = ImageService(settings)
    registry.add_service(service)
    registry.add_internal(IMAGE_TOOL, service.process, service.ended)


async def _tried(work: Callable[[], Awaitable[Any]]) -> None:
    try:
        await work()
    except _TROUBLE as error:
        log.warning("looking after images is left to the next round: %s", error)
    except Exception:
        log.exception("looking after images is left to the next round")
