"""Quotas: what ENQUEUE counts as active is looked at again before anybody is turned away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from common.errors import QuotaExceeded
from common.queue import QueueStore
from common.store import Accepted, JobStore, NewJob

#: A key whose jobs were all found at work is not looked at again before this.
SETTLE_EVERY_S = 0.2
REMEMBERED = 4096


class Quotas:
    """Tells jobs that have ended from those that have not, for all keys of this process."""

    def __init__(
        self, store: JobStore, queue: QueueStore, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._queue = queue
        self._clock = clock
        self._settling: dict[str, asyncio.Task[int]] = {}
        self._in_vain: dict[str, float] = {}

    async def enqueue(self, job: NewJob, group: str, backlog_limit: int) -> Accepted:
        """Accept a job of a limited caller; raises what `JobStore.enqueue` does."""
        try:
            return await self._store.enqueue(job, group, backlog_limit)
        except QuotaExceeded:
            if job.limits is None or not await self.settle(job.limits.active_key):
                raise
        return await self._store.enqueue(job, group, backlog_limit)

    async def settle(self, active_key: str) -> int:
        """How many of the key's jobs turned out to have ended; all who ask share one look."""
        task = self._settling.get(active_key)
        if task is None:
            if self._clock() - self._in_vain.get(active_key, -SETTLE_EVERY_S) < SETTLE_EVERY_S:
                return 0
            task = asyncio.create_task(self._look(active_key))
            self._settling[active_key] = task
        return await asyncio.shield(task)

    async def _look(self, active_key: str) -> int:
        try:
            settled = await self._queue.settle(active_key)
        finally:
            del self._settling[active_key]
        if not settled:
            if len(self._in_vain) > REMEMBERED:
                self._in_vain.clear()
            self._in_vain[active_key] = self._clock()
        return settled
