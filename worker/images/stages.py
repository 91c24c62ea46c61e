"""Tells how far an image has got, stage after stage, while a process works on it."""

from __future__ import annotations

import asyncio
import logging

from common import crashpoints
from common.contracts.images import IMAGE_STEP, PROGRESS, Stage, StageField
from common.contracts.models import Channel
from common.crashpoints import CrashPoint
from common.errors import StoreUnavailable
from common.images.store import ImageStore
from common.images.types import ImageAnswer, Processing
from worker.context import JobContext
from worker.errors import AttemptLost
from worker.images.errors import Superseded

log = logging.getLogger(__name__)


class Stages:
    """One writer for one attempt: what is noted is written in that order, none left out."""

    def __init__(self, core: JobContext, store: ImageStore, processing: Processing) -> None:
        self._core = core
        self._store = store
        self._processing = processing
        self._noted: asyncio.Queue[Stage | None] = asyncio.Queue()
        #: The last one that was noted.
        self.at = Stage.QUEUED

    def note(self, stage: Stage) -> None:
        """A process has come to a stage."""
        self.at = stage
        self._noted.put_nowait(stage)

    def close(self) -> None:
        """Nothing more will be noted."""
        self._noted.put_nowait(None)

    async def run(self) -> None:
        """Write what is noted until the end. Raises AttemptLost or Superseded."""
        while (stage := await self._noted.get()) is not None:
            await self.tell(stage)

    async def tell(self, stage: Stage) -> None:
        """Write one now. Raises AttemptLost or Superseded."""
        self.at = stage
        try:
            outcome = await self._store.advance(self._processing, stage)
        except StoreUnavailable as error:  # the work is worth more: its end is written later
            log.warning("stage %s was not written: %s", stage.value, error)
            return
        if outcome.answer is ImageAnswer.MISSING:
            raise Superseded(deleted=True)
        if outcome.answer is ImageAnswer.LOST:
            raise AttemptLost
        await self._core.emit(
            Channel.PROGRESS.value,
            {
                StageField.IMAGE_ID.value: self._processing.image_id,
                StageField.STAGE.value: stage.value,
                StageField.PROGRESS.value: int(PROGRESS[stage]),
                StageField.ATTEMPT.value: self._core.attempt,
            },
            step=IMAGE_STEP,
        )
        if crashpoints.ARMED:
            crashpoints.reach(CrashPoint.AFTER_IMAGE_STAGE)
