"""The image service of a worker: processing, reconciling and clean-up."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from sluice.common.contracts.images import IMAGE_TOOL
from sluice.common.contracts.workers import WorkerField
from sluice.common.errors import SettingsError, SluiceError
from sluice.common.features.images.reader import ImageReader
from sluice.common.features.images.storage.factory import create_spool, create_storage
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.worker.execution.context import JobContext
from sluice.worker.execution.outcome import Outcome
from sluice.worker.execution.process_pool.pool import ProcessPool, available_cores
from sluice.worker.features.images.cleanup import FileCleaner, OrphanedObjects
from sluice.worker.features.images.detect.choice import DetectorSelfTest, choose_detector
from sluice.worker.features.images.job_failure import ImageFailureReporter
from sluice.worker.features.images.pixels.formats import installed_formats, missing_package
from sluice.worker.features.images.pixels.types import ImageLimits
from sluice.worker.features.images.processor import Processor, ProcessorDependencies
from sluice.worker.features.images.reconciler import ImageReconciler
from sluice.worker.features.images.results import ImageCounters
from sluice.worker.registry import Registry, Service, WorkerServices

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings
    from sluice.worker.features.shared import SharedServices

log = logging.getLogger(__name__)

#: A process is replaced after this many images, to bound what libraries leak.
IMAGES_PER_PROCESS: Final = 50
#: Facts about one image. The image may control the process, and the worker keeps them in memory.
MOST_REPLY_BYTES: Final = 1 << 20
#: Jobs allowed in addition to those that have a process: they read, store or wait for a process.
#: Further jobs stay in Redis, where any worker may take them, and leave slots to other tasks.
EXTRA_JOBS: Final = 2
#: Random extra delay, as a fraction of the interval, so that workers do not run in step.
JITTER: Final = 0.2
_EXPECTED_ERRORS: Final = (RedisError, SluiceError, OSError, *TRANSIENT_ERRORS)


class ImageService(Service):
    """Processes images, ends stranded ones and removes unneeded files."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self.parallel = settings.image_parallel or available_cores()
        self.pool = ProcessPool(
            self.parallel,
            memory_bytes=settings.image_memory_mb << 20,
            most_calls=IMAGES_PER_PROCESS,
            most_reply_bytes=MOST_REPLY_BYTES,
            input_is_hostile=True,
        )
        self.self_test = DetectorSelfTest(self.pool, choose_detector(settings), settings)
        self.storage = create_storage(settings)
        self.spool = create_spool(settings)
        try:
            self._limits = ImageLimits.of(settings)
        except ValueError as error:
            raise SettingsError(f"IMAGE_FORMATS={settings.image_formats!r}: {error}") from None
        self.counters = ImageCounters(self.parallel, installed_formats(self._limits.formats))

    async def start(self, services: WorkerServices) -> None:
        """Connect to the worker's services.

        Raises SettingsError if a configured detector does not work.
        """
        if missing := missing_package(self._limits.formats):
            log.warning("images will fail: %s", missing)
        store, reader = services.images, ImageReader(services.redis, services.images.keys)
        self.orphans = OrphanedObjects(self.storage, reader)
        await self.self_test.start()
        self._store, self._reader = store, reader
        self.failure_reporter = ImageFailureReporter(store, self.spool, self.counters, self.orphans)
        self.reconciler = ImageReconciler(
            services.redis,
            services.keys,
            store,
            reader,
            self.spool,
            self.failure_reporter,
            self._settings.image_reconcile_s,
        )
        self.cleaner = FileCleaner(services.redis, reader, self.spool, self.storage)
        services.limits.set_limit([IMAGE_TOOL], self.parallel + EXTRA_JOBS)
        services.heartbeat_fields[WorkerField.IMAGES] = lambda: self.counters.reading(
            self.self_test.choice
        )

    async def run(self) -> None:
        """Reconcile and clean up periodically, until canceled."""
        await _run_safely(self.cleaner.claim_store)
        while True:
            every_s = self._settings.image_reconcile_s
            await asyncio.sleep(every_s * random.uniform(1.0, 1.0 + JITTER))
            await _run_safely(self.run_once)

    async def run_once(self) -> None:
        """One round, if this worker gets the lock."""
        if await self.reconciler.acquire_lock():
            await _run_safely(self.reconciler.run_once)
            await _run_safely(self.cleaner.run_once)

    async def close(self) -> None:
        await self.self_test.close()
        await self.orphans.close()
        await self.pool.close()
        await self.storage.close()

    @cached_property
    def processor(self) -> Processor:
        return Processor(
            ProcessorDependencies(
                self._store,
                self._reader,
                self.spool,
                self.storage,
                self.pool,
                self.self_test,
                self._limits,
                self._settings.image_timeout_s,
                self.counters,
                self.orphans,
            )
        )

    # -- internal tool ---------------------------------------------------------------------

    async def process(self, context: JobContext, args: dict[str, Any]) -> dict[str, Any] | None:
        return await self.processor.process(context, args)

    async def ended(
        self, context: JobContext, args: Mapping[str, Any], outcome: Outcome, error: bytes
    ) -> None:
        """Called when the core job of an image has ended in error or was canceled."""
        await self.failure_reporter.ended(context, args, outcome, error)


def register(registry: Registry, settings: WorkerSettings, shared: SharedServices) -> None:
    """Process images; raises SettingsError if a configured detector or format is missing."""
    add_service(registry, settings)


def add_service(registry: Registry, settings: WorkerSettings) -> None:
    service = ImageService(settings)
    registry.add_service(service)
    registry.add_internal(IMAGE_TOOL, service.process, service.ended)


async def _run_safely(work: Callable[[], Awaitable[Any]]) -> None:
    try:
        await work()
    except _EXPECTED_ERRORS as error:
        log.warning("image maintenance failed, retrying next round: %s", error)
    except Exception:
        log.exception("image maintenance failed, retrying next round")
