"""Keeps the queue's memory flat: forgets entries that everybody has acknowledged."""

from __future__ import annotations

import asyncio
import logging

from common.errors import SluiceError
from common.store import JobStore

log = logging.getLogger(__name__)

TRIM_EVERY_S = 1.0


class Janitor:
    """Trims the queue now and then."""

    def __init__(self, store: JobStore, every_s: float = TRIM_EVERY_S) -> None:
        self._store = store
        self._every_s = every_s

    async def run(self) -> None:
        """Trim until canceled."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.run_once()

    async def run_once(self) -> None:
        """Trim once; trouble is left to the next round."""
        try:
            await self._store.trim()
        except SluiceError as error:
            log.warning("queue not trimmed: %s", error)
