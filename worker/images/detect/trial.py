"""Whether who is to look at images can: tried once, in a process, before the first image."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Final

from common.cancellation import cancel
from common.contracts.images import Detector
from common.errors import SettingsError
from worker.compute.pool import Pool
from worker.images.detect.choice import DetectorChoice

if TYPE_CHECKING:
    from common.image_settings import ImageWorkerSettings

log = logging.getLogger(__name__)

#: Reading a model and looking at nothing takes a second or so.
TRIAL_S: Final = 60.0


class Trial:
    """Who was named in the settings must be able to look; who was just there need not."""

    def __init__(self, pool: Pool, choice: DetectorChoice, settings: ImageWorkerSettings) -> None:
        self._pool = pool
        #: As chosen; as it turned out, once it was tried.
        self.choice = choice
        self._is_named = bool(
            settings.image_detector not in ("auto", Detector.NONE.value)
            or settings.image_model_path
            or settings.image_plate_model
        )
        self._trying: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin; raises SettingsError for who was named and cannot look."""
        if not self.choice.looks:
            return
        self._trying = asyncio.create_task(self._try())
        if self._is_named:
            await self._trying
            if self.choice.why_none:
                raise SettingsError(
                    f"nobody can look for faces or plates as the settings say: "
                    f"{self.choice.why_none}; correct IMAGE_DETECTOR, IMAGE_MODEL_PATH or "
                    "IMAGE_PLATE_MODEL"
                )

    async def outcome(self) -> DetectorChoice:
        """Who looks, once that is known."""
        if self._trying is not None:
            await asyncio.shield(self._trying)
        return self.choice

    async def close(self) -> None:
        """It does not matter any more."""
        if self._trying is not None:
            await cancel(self._trying)

    async def _try(self) -> None:
        try:
            why = await self._pool.run(_try_out, self.choice, timeout_s=TRIAL_S)
        except Exception as error:  # a crash, too much memory, a package that is broken
            why = f"{type(error).__name__}: {error}"
        if why:
            log.error("nobody looks for faces or plates in images: %s", why)
            self.choice = dataclasses.replace(
                self.choice, faces=Detector.NONE, face_model="", plate_model="", why_none=why[:1000]
            )


def _try_out(choice: DetectorChoice) -> str:
    from worker.images.detect.finding import try_out

    return try_out(choice)
