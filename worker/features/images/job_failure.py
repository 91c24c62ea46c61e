"""Fails an image whose core job has ended without it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from common.contracts.images import IMAGE_TOOL, ImageFact
from common.features.images.storage.factory import create_spool
from common.features.images.storage.spool import Spool
from common.features.images.store import ImageStore
from common.features.images.types import ImageAnswer, ProcessingAttempt, ProcessingFailure
from worker.errors import InvalidPayload
from worker.execution.context import JobContext
from worker.execution.outcome import Outcome
from worker.features.images import errors
from worker.features.images.cleanup import OrphanedObjects, remove_upload
from worker.features.images.counters import ImageCounters
from worker.features.images.errors import ImageFailed
from worker.features.images.results import ImageArguments
from worker.registry import Registry, Service, WorkerServices

if TYPE_CHECKING:
    from common.settings.worker import WorkerSettings

log = logging.getLogger(__name__)


class ImageFailureReporter:
    """Tells images how their core jobs ended, where they ended badly."""

    def __init__(
        self,
        store: ImageStore,
        spool: Spool,
        numbers: ImageCounters,
        leftovers: OrphanedObjects | None = None,
    ) -> None:
        self._store = store
        self._spool = spool
        self._counters = numbers
        self._orphans = leftovers

    async def ended(
        self, context: JobContext, args: Mapping[str, Any], outcome: Outcome, error: bytes
    ) -> None:
        """The core job has ended in error, or was canceled."""
        try:
            image_id, upload_id = ImageArguments.of(args)
        except InvalidPayload:  # nobody waits for it
            return
        canceled = outcome is Outcome.CANCELED
        failed = errors.CANCELED if canceled else errors.core_job_failure(error)
        await self.fail(ProcessingAttempt(image_id, upload_id), failed)

    async def fail(self, processing: ProcessingAttempt, failed: ProcessingFailure) -> bool:
        """End an upload badly; whether it did. Its file is needed no more."""
        image_id, upload_id, _ = processing
        found = await self._store.fail(processing, failed)
        if found.answer is ImageAnswer.OK:
            log.warning("image %s failed: %s", image_id, failed.message)
            self._counters.ended(found.facts.get(ImageFact.OUTCOME) or {})
        elif found.answer is ImageAnswer.MISSING and self._orphans is not None:
            await self._orphans.remove(image_id)
        await remove_upload(self._spool, image_id, upload_id)
        return found.answer is ImageAnswer.OK


class ImageRejectionService(Service):
    """Fails images at once, so that whoever waits hears why."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._spool = create_spool(settings)

    async def start(self, house: WorkerServices) -> None:
        self._failure_reporter = ImageFailureReporter(house.images, self._spool, ImageCounters(0))

    async def reject(self, context: JobContext, args: dict[str, Any]) -> NoReturn:
        ImageArguments.of(args)
        failed = errors.ECHO_WORKER
        raise ImageFailed(failed.code.value, failed.message)

    async def ended(
        self, context: JobContext, args: Mapping[str, Any], outcome: Outcome, error: bytes
    ) -> None:
        """Its core job has ended so: let the image know."""
        try:
            upload = ImageArguments.of(args)
        except InvalidPayload:  # nobody waits for it
            return
        canceled = outcome is Outcome.CANCELED
        failed = errors.CANCELED if canceled else errors.ECHO_WORKER
        await self._failure_reporter.fail(ProcessingAttempt(*upload), failed)


def register(registry: Registry, settings: WorkerSettings) -> None:
    refusing = ImageRejectionService(settings)
    registry.add_service(refusing)
    registry.add_internal(IMAGE_TOOL, refusing.reject, refusing.ended)
