"""Removes what lies in the store of an image that was deleted."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from common.cancellation import cancel
from common.contracts.images import storage_key
from common.errors import SluiceError
from common.images.reader import ImageReader
from common.images.storage import Storage, StorageError

log = logging.getLogger(__name__)


class Leftovers:
    """Whoever deletes an image removes its object, and may come before that is written."""

    def __init__(self, storage: Storage, reader: ImageReader) -> None:
        self._storage = storage
        self._reader = reader
        self._waiting: set[asyncio.Task[None]] = set()

    async def remove(self, image_id: str) -> None:
        """The image is gone: its object goes. Never raises."""
        try:
            await self._storage.delete(storage_key(image_id))
        except StorageError as error:
            log.warning("what was stored of a deleted image stays: %s", error)

    def watch(self, putting: asyncio.Future[Any], image_id: str) -> None:
        """Nobody waits for an object any more, which is being written and cannot be stopped."""
        task = asyncio.ensure_future(self._after(putting, image_id))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _after(self, putting: asyncio.Future[Any], image_id: str) -> None:
        await asyncio.wait({putting})
        if not putting.cancelled():
            putting.exception()  # it is nobody's business any more
        try:
            if await self._reader.record(image_id) is None:
                await self.remove(image_id)
        except SluiceError as error:
            log.warning("what was stored of image %s may stay: %s", image_id, error)

    async def close(self) -> None:
        """The worker ends."""
        await cancel(*self._waiting)
