"""Fails an image when its core job ends without success."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from sluice.common.contracts.images import IMAGE_TOOL, ImageFact
from sluice.common.features.images.storage.factory import create_spool
from sluice.common.features.images.storage.spool import Spool
from sluice.common.features.images.store import ImageStore
from sluice.common.features.images.types import ImageAnswer, ProcessingAttempt, ProcessingFailure
from sluice.worker.errors import InvalidPayload
from sluice.worker.execution.context import JobContext
from sluice.worker.execution.outcome import Outcome
from sluice.worker.features.images import errors
from sluice.worker.features.images.cleanup import OrphanedObjects, remove_upload
from sluice.worker.features.images.errors import ImageFailed
from sluice.worker.features.images.results import ImageArguments, ImageCounters
from sluice.worker.registry import Registry, Service, WorkerServices

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings

log = logging.getLogger(__name__)


class ImageFailureReporter:
    """Fails images whose core jobs ended in error or were canceled."""

    def __init__(
        self,
        store: ImageStore,
        spool: Spool,
        counters: ImageCounters,
        orphans: OrphanedObjects | None = None,
    ) -> None:
        self._store = store
        self._spool = spool
        self._counters = counters
        self._orphans = orphans

    async def ended(
        self, context: JobContext, args: Mapping[str, Any], outcome: Outcome, error: bytes
    ) -> None:
        """Called when the core job has ended in error or was canceled."""
        try:
            image_id, upload_id = ImageArguments.of(args)
        except InvalidPayload:  # no image to fail
            return
        canceled = outcome is Outcome.CANCELED
        failed = errors.CANCELED if canceled else errors.core_job_failure(error)
        await self.fail(ProcessingAttempt(image_id, upload_id), failed)

    async def fail(self, processing: ProcessingAttempt, failed: ProcessingFailure) -> bool:
        """Fail an upload and remove its spool file; False if the image had already ended."""
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
    """Rejects images on an echo worker, so that clients get the reason at once."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._spool = create_spool(settings)

    async def start(self, services: WorkerServices) -> None:
        self._failure_reporter = ImageFailureReporter(
            services.images, self._spool, ImageCounters(0)
        )

    async def reject(self, context: JobContext, args: dict[str, Any]) -> NoReturn:
        ImageArguments.of(args)
        failed = errors.ECHO_WORKER
        raise ImageFailed(failed.code.value, failed.message)

    async def ended(
        self, context: JobContext, args: Mapping[str, Any], outcome: Outcome, error: bytes
    ) -> None:
        """Called when the core job has ended; fails the image."""
        try:
            upload = ImageArguments.of(args)
        except InvalidPayload:  # no image to fail
            return
        canceled = outcome is Outcome.CANCELED
        failed = errors.CANCELED if canceled else errors.ECHO_WORKER
        await self._failure_reporter.fail(ProcessingAttempt(*upload), failed)


def register(registry: Registry, settings: WorkerSettings) -> None:
    rejection = ImageRejectionService(settings)
    registry.add_service(rejection)
    registry.add_internal(IMAGE_TOOL, rejection.reject, rejection.ended)
