"""Trims the queue stream, and removes consumers that are gone."""

from __future__ import annotations

import asyncio
import logging

from sluice.common.errors import SluiceError
from sluice.common.jobs.queue import QueueStore
from sluice.common.text import plural

log = logging.getLogger(__name__)

TRIM_EVERY_S = 1.0
#: Idle consumers are removed every so many rounds.
FORGET_EVERY = 600
#: Milliseconds after which a consumer without pending messages counts as gone.
FORGET_AFTER_MS = 24 * 3600 * 1000


class QueueCleaner:
    """Cleans one queue up periodically."""

    def __init__(self, store: QueueStore, group: str, every_s: float = TRIM_EVERY_S) -> None:
        self._store = store
        self._group = group
        self._every_s = every_s
        self._rounds = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.run_once()

    async def run_once(self) -> None:
        """Clean up once. After an error the next round tries again."""
        self._rounds += 1
        try:
            await self._store.trim()
            if self._rounds % FORGET_EVERY == 1:
                removed = await self._store.remove_idle_consumers(self._group, FORGET_AFTER_MS)
                if removed:
                    log.info("removed %s idle for a day", plural(removed, "consumer"))
        except SluiceError as error:
            log.warning("queue not cleaned up: %s", error)
        except Exception:
            log.exception("queue not cleaned up after an unexpected error")
