"""What an echo worker says to images: an echo of one would be nothing, and seem to be done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from common.contracts.images import IMAGE_TOOL
from common.images.storage_choice import spool_of
from common.images.types import Processing
from worker.context import JobContext
from worker.errors import InvalidPayload
from worker.images import failures
from worker.images.arguments import ImageArguments
from worker.images.ending import Ending
from worker.images.errors import ImageFailed
from worker.images.numbers import Numbers
from worker.outcome import Outcome
from worker.registry import Registry
from worker.services import House, Service

if TYPE_CHECKING:
    from common.settings import WorkerSettings


class Refusing(Service):
    """Fails images at once, so that whoever waits hears why."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._spool = spool_of(settings)

    async def start(self, house: House) -> None:
        """Know the house."""
        self._ending = Ending(house.images, self._spool, Numbers(0))

    async def refuse(self, context: JobContext, args: dict[str, Any]) -> NoReturn:
        """Do nothing, and say so."""
        ImageArguments.of(args)
        failed = failures.ONLY_ECHOES
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
        failed = failures.CANCELED if canceled else failures.ONLY_ECHOES
        await self._ending.fail(Processing(*upload), failed)


def register(registry: Registry, settings: WorkerSettings) -> None:
    """Let `registry` refuse images."""
    refusing = Refusing(settings)
    registry.add_service(refusing)
    registry.add_internal(IMAGE_TOOL, refusing.refuse, refusing.ended)
