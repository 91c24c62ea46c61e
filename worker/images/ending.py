"""Fails an image whose core job has ended without it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from common.contracts.images import ImageFact
from common.images.spool import Spool
from common.images.store import ImageStore
from common.images.types import Failed, ImageAnswer, Processing
from worker.context import JobContext
from worker.errors import InvalidPayload
from worker.images import failures
from worker.images.arguments import ImageArguments
from worker.images.leftovers import Leftovers
from worker.images.numbers import Numbers
from worker.images.spooled import forget
from worker.outcome import Outcome

log = logging.getLogger(__name__)


class Ending:
    """Tells images how their core jobs ended, where they ended badly."""

    def __init__(
        self,
        store: ImageStore,
        spool: Spool,
        numbers: Numbers,
        leftovers: Leftovers | None = None,
    ) -> None:
        self._store = store
        self._spool = spool
        self._numbers = numbers
        self._leftovers = leftovers

    async def ended(
        self, context: JobContext, args: Mapping[str, Any], outcome: Outcome, error: bytes
    ) -> None:
        """The core job has ended in error, or was canceled."""
        try:
            image_id, upload_id = ImageArguments.of(args)
        except InvalidPayload:  # nobody waits for it
            return
        canceled = outcome is Outcome.CANCELED
        failed = failures.CANCELED if canceled else failures.of_job(error)
        await self.fail(Processing(image_id, upload_id), failed)

    async def fail(self, processing: Processing, failed: Failed) -> bool:
        """End an upload badly; whether it did. Its file is needed no more."""
        image_id, upload_id, _ = processing
        found = await self._store.fail(processing, failed)
        if found.answer is ImageAnswer.OK:
            log.warning("image %s failed: %s", image_id, failed.message)
            self._numbers.ended(found.facts.get(ImageFact.OUTCOME.value) or {})
        elif found.answer is ImageAnswer.MISSING and self._leftovers is not None:
            await self._leftovers.remove(image_id)
        await forget(self._spool, image_id, upload_id)
        return found.answer is ImageAnswer.OK
