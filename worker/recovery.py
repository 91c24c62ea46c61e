"""Takes over messages whose worker fell silent: pending for longer than a lease."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from redis.exceptions import RedisError

from common.connection import TRANSIENT_ERRORS
from common.store import WorkerIdentity
from common.wire import Commander
from worker.intake import Message
from worker.reader import Reader, message
from worker.slots import Slots

log = logging.getLogger(__name__)

#: Looks often enough that a dead worker's job goes on within a lease and a second or two.
LONGEST_WAIT_S = 1.0
_END = b"0-0"


class Recovery:
    """Every worker looks after every other's messages.

    A running job's lease and its message are renewed together, so a message that was idle for a
    lease belongs to nobody; BEGIN refuses it if that should be wrong. What is claimed goes the
    same way as what is read, and no more is claimed than there are free slots.
    """

    def __init__(
        self, wire: Commander, queue: str, worker: WorkerIdentity, slots: Slots, reader: Reader
    ) -> None:
        self._wire = wire
        self._queue = queue
        self._worker = worker
        self._slots = slots
        self._reader = reader

    async def run(self) -> None:
        """Look until canceled; trouble is left to the next round."""
        wait_s = min(self._worker.lease_ms / 3000, LONGEST_WAIT_S)
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self.run_once()
            except (RedisError, *TRANSIENT_ERRORS) as error:
                log.warning("redis: %s; silent workers are looked after later", error)

    async def run_once(self) -> int:
        """Go through the whole pending list once; returns how many messages were taken over."""
        cursor, taken = _END, 0
        while (free := self._slots.free) > 0:
            cursor, messages = await self._claim(cursor, free)
            if messages:
                log.warning("took over %d messages of silent workers", len(messages))
                self._reader.offer(messages)
                taken += len(messages)
            if cursor == _END:
                break
        return taken

    async def _claim(self, cursor: bytes, count: int) -> tuple[bytes, list[Message]]:
        worker = self._worker
        # Redis 7 adds a third part, the ids whose entries were deleted; 6.2 returns nil for them.
        reply: Any = await self._wire.execute_command(
            "XAUTOCLAIM", self._queue, worker.group, worker.consumer, worker.lease_ms, cursor,
            "COUNT", count,
        )  # fmt: skip
        return reply[0], [message(entry) for entry in reply[1] if entry]
