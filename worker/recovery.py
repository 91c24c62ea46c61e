"""Takes over messages whose worker fell silent: pending for longer than a lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from redis.exceptions import RedisError

from common import crashpoints, logs
from common.connection import TRANSIENT_ERRORS
from common.contracts.jobs import LEASE_MAX_MS
from common.crashpoints import CrashPoint
from common.store import WorkerIdentity
from common.wire import Commander
from worker.admission import Admission
from worker.deferred import Deferred
from worker.messages import Message, message
from worker.slots import Reservation, Slots
from worker.tally import Tally
from worker.turns import Turn

log = logging.getLogger(__name__)

#: Looks often enough that a dead worker's job goes on within a lease and a second or two.
LONGEST_WAIT_S = 1.0
#: Leftovers asked for by one command.
PAGE = 200
_END = b"0-0"


class Recovery:
    """Every worker looks after every other's messages.

    A running job's lease and its message are renewed together, so a message that was idle for a
    lease belongs to nobody; BEGIN refuses it if that should be wrong. What is claimed goes the
    same way as what is read, and no more is claimed than there are free slots.
    """

    def __init__(
        self,
        wire: Commander,
        queue: str,
        worker: WorkerIdentity,
        slots: Slots,
        admission: Admission,
        deferred: Deferred,
        tally: Tally | None = None,
        turn: Turn | None = None,
    ) -> None:
        self._wire = wire
        self._queue = queue
        self._worker = worker
        self._slots = slots
        self._admission = admission
        self._deferred = deferred
        self._tally = Tally() if tally is None else tally
        #: Where other queues want the same places.
        self._turn = turn
        self._wait_s = min(worker.lease_ms / 3000, LONGEST_WAIT_S)
        self._asking: asyncio.Task[Reservation | None] | None = None

    async def run(self) -> None:
        """Look until canceled; trouble is left to the next round."""
        lease_s = self._worker.lease_ms / 1000
        clock = asyncio.get_running_loop().time
        has_own, kept_at = False, clock()
        try:
            while True:
                try:
                    if not has_own:
                        await self.take_back_own()
                        has_own = True
                    if clock() - kept_at >= lease_s / 3:
                        await self._deferred.keep()
                        kept_at = clock()
                    await self.run_once()
                except (RedisError, *TRANSIENT_ERRORS) as error:
                    # Without a group nobody has anything; the reader makes one.
                    level = logging.DEBUG if str(error).startswith("NOGROUP") else logging.WARNING
                    log.log(level, "redis: %s; silent workers are looked after later", error)
                    self._ask_no_longer()
                except Exception:  # whatever it is, somebody must look after them
                    log.exception("silent workers are looked after later")
                    self._ask_no_longer()
                if self._asking is None:  # else we have waited already, and go on
                    await asyncio.sleep(self._wait_s)
        finally:
            self._ask_no_longer()

    def _ask_no_longer(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None and not asking.cancel() and asking.exception() is None:
            self._give_back(asking.result(), 0)

    async def take_back_own(self) -> int:
        """What an earlier process of our name left behind need not wait to look abandoned."""
        found = 0
        async for ids in self._own():
            for message_id in ids:
                self._deferred.add(message_id)
            found += len(ids)
        if found:
            log.info("took back %d messages that were ours before", found)
        return found

    async def hand_back_own(self, running: set[str]) -> None:
        """What is ours and does not run when we stop need not wait either: let anybody claim it."""
        worker = self._worker
        async for page in self._own():
            ids = [message_id for message_id in page if message_id not in running]
            if not ids:
                continue
            await self._wire.execute_command(
                "XCLAIM", self._queue, worker.group, worker.consumer, 0, *ids,
                "IDLE", LEASE_MAX_MS, "JUSTID",
            )  # fmt: skip

    async def _own(self) -> AsyncIterator[list[str]]:
        """Ids of the messages that are pending under our name, page by page."""
        worker, start = self._worker, "-"
        while True:
            entries: Any = await self._wire.execute_command(
                "XPENDING", self._queue, worker.group, start, "+", PAGE, worker.consumer
            )
            ids = [entry[0].decode() for entry in entries]
            if ids:
                yield ids
            if len(ids) < PAGE:
                return
            start = f"({ids[-1]}"

    async def run_once(self) -> int:
        """Go through the whole pending list once; returns how many messages were taken over.

        Whoever reads leaves us a place: a worker that is always busy must look, too.
        """
        cursor, taken = _END, 0
        while (asked := await self._places()) is not None:
            messages: list[Message] = []
            places = asked.result()
            try:
                if places is not None and places.count:
                    cursor, messages = await self._claim(cursor, places.count)
            finally:
                self._give_back(places, len(messages))
            taken += self._take_over(messages)
            if cursor == _END:
                if self._turn is not None:
                    self._turn.rest()  # until the next round, also where all places were used
                break
        return taken

    async def _places(self) -> asyncio.Task[Reservation | None] | None:
        """Places, or None where we have to go on asking: there is more to do than to wait."""
        asking = self._asking or asyncio.ensure_future(self._ask())
        self._asking = asking
        done, _ = await asyncio.wait({asking}, timeout=self._wait_s)
        if not done:
            return None
        self._asking = None
        return asking

    async def _ask(self) -> Reservation | None:
        if self._turn is not None:  # no more than this queue's share of them
            return await self._turn.take(PAGE)
        return await self._slots.take(PAGE)

    def _give_back(self, places: Reservation | None, messages: int) -> None:
        if self._turn is not None:
            self._turn.end(places, messages)
        elif places is not None:
            places.end()

    def _take_over(self, messages: list[Message]) -> int:
        if messages:
            log.warning("took over %d messages of silent workers", len(messages))
            for taken_over in messages:
                about = logs.about(taken_over.job_id)
                log.info("took over message %s", taken_over.id, extra=about)
            self._tally.reclaimed(message.task for message in messages)
            self._admission.offer(messages)
        return len(messages)

    async def _claim(self, cursor: bytes, count: int) -> tuple[bytes, list[Message]]:
        worker = self._worker
        # Redis 7 adds a third part, the ids whose entries were deleted; 6.2 returns nil for them.
        reply: Any = await self._wire.execute_command(
            "XAUTOCLAIM", self._queue, worker.group, worker.consumer, worker.lease_ms, cursor,
            "COUNT", count,
        )  # fmt: skip
        if len(reply) > 2 and reply[2]:
            log.error("%d pending messages were deleted by somebody: %s", len(reply[2]), reply[2])
        if crashpoints.ARMED:
            crashpoints.reach(CrashPoint.AFTER_CLAIM)
        return reply[0], [message(entry) for entry in reply[1] if entry]
