"""Keeps what the queue remembers small: forgets old entries, and workers long gone."""

from __future__ import annotations

import asyncio
import logging

from common.errors import SluiceError
from common.jobs.queue import QueueStore
from common.text import plural

log = logging.getLogger(__name__)

TRIM_EVERY_S = 1.0
#: Every so many rounds, consumers are looked at too.
FORGET_EVERY = 600
#: A consumer that holds nothing and was not seen for so long will not come back.
FORGET_AFTER_MS = 24 * 3600 * 1000


class QueueCleaner:
    """Tidies up now and then."""

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
        """Tidy up once; trouble is left to the next round."""
        self._rounds += 1
        try:
            await self._store.trim()
            if self._rounds % FORGET_EVERY == 1:
                forgotten = await self._store.remove_idle_consumers(self._group, FORGET_AFTER_MS)
                if forgotten:
                    log.info("forgot %s not seen for a day", plural(forgotten, "consumer"))
        except SluiceError as error:
            log.warning("queue not tidied up: %s", error)
        except Exception:
            log.exception("queue not tidied up after an unexpected fault")
