"""Takes over messages whose lease expired: pending for longer than a lease without renewal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from redis.exceptions import RedisError

from sluice.common.contracts.jobs import LEASE_MAX_MS
from sluice.common.jobs.store import WorkerIdentity
from sluice.common.observability import logs
from sluice.common.process import crashpoints
from sluice.common.process.crashpoints import CrashPoint
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.pipelined import CommandClient
from sluice.common.text import plural
from sluice.worker.monitoring.counters import Counters
from sluice.worker.queue.admission import Admission
from sluice.worker.queue.deferred import DeferredMessages
from sluice.worker.queue.fair_share import Share
from sluice.worker.queue.messages import Message, parse_message
from sluice.worker.queue.slots import Reservation, Slots

log = logging.getLogger(__name__)

#: Seconds between two scans at most, so that a dead worker's job continues within a lease and a
#: second or two.
LONGEST_WAIT_S = 1.0
#: Messages claimed or listed by one command.
PAGE = 200
_CURSOR_END = b"0-0"


class Recovery:
    """Claims pending messages of all workers whose lease has expired.

    A running job's lease and its message are renewed together, so a message that was idle for a
    lease has no live worker. Should that be wrong, BEGIN refuses it. Claimed messages are handled
    like new ones, and no more are claimed than there are free slots.
    """

    def __init__(
        self,
        connection: CommandClient,
        queue: str,
        worker: WorkerIdentity,
        slots: Slots,
        admission: Admission,
        deferred: DeferredMessages,
        counters: Counters | None = None,
        share: Share | None = None,
    ) -> None:
        self._connection = connection
        self._queue = queue
        self._worker = worker
        self._slots = slots
        self._admission = admission
        self._deferred = deferred
        self._counters = Counters() if counters is None else counters
        #: Set if other queues share the slots.
        self._share = share
        self._wait_s = min(worker.lease_ms / 3000, LONGEST_WAIT_S)
        self._request: asyncio.Task[Reservation | None] | None = None

    async def run(self) -> None:
        """Scan until canceled. After an error the next scan tries again."""
        lease_s = self._worker.lease_ms / 1000
        clock = asyncio.get_running_loop().time
        has_own, renewed_at = False, clock()
        try:
            while True:
                try:
                    if not has_own:
                        await self.reclaim_own()
                        has_own = True
                    if clock() - renewed_at >= lease_s / 3:
                        await self._deferred.renew()
                        renewed_at = clock()
                    await self.run_once()
                except (RedisError, *TRANSIENT_ERRORS) as error:
                    # Without a group nothing is pending; the reader creates one.
                    level = logging.DEBUG if str(error).startswith("NOGROUP") else logging.WARNING
                    log.log(level, "redis: %s; expired leases are recovered later", error)
                    self._cancel_request()
                except Exception:  # the scans must continue after any error
                    log.exception("recovery of expired leases failed unexpectedly; retrying")
                    self._cancel_request()
                if self._request is None:  # otherwise the wait for slots took the time
                    await asyncio.sleep(self._wait_s)
        finally:
            self._cancel_request()

    def _cancel_request(self) -> None:
        request, self._request = self._request, None
        if request is not None and not request.cancel() and request.exception() is None:
            self._release(request.result(), 0)

    async def reclaim_own(self) -> int:
        """Take back the pending messages of an earlier process with the same consumer name, without
        waiting for their lease to expire; returns how many."""
        found = 0
        async for ids in self._own_pending():
            for message_id in ids:
                self._deferred.add(message_id)
            found += len(ids)
        if found:
            log.info("took back %s of an earlier process", plural(found, "pending message"))
        return found

    async def release_own(self, running: set[str]) -> None:
        """Let other workers claim the messages of this consumer at once, except those in `running`.

        Used when the worker stops.
        """
        worker = self._worker
        async for page in self._own_pending():
            ids = [message_id for message_id in page if message_id not in running]
            if not ids:
                continue
            await self._connection.execute_command(
                "XCLAIM", self._queue, worker.group, worker.consumer, 0, *ids,
                "IDLE", LEASE_MAX_MS, "JUSTID",
            )  # fmt: skip

    async def _own_pending(self) -> AsyncIterator[list[str]]:
        """Ids of this consumer's pending messages, page by page."""
        worker, start = self._worker, "-"
        while True:
            entries: Any = await self._connection.execute_command(
                "XPENDING", self._queue, worker.group, start, "+", PAGE, worker.consumer
            )
            ids = [entry[0].decode() for entry in entries]
            if ids:
                yield ids
            if len(ids) < PAGE:
                return
            start = f"({ids[-1]}"

    async def run_once(self) -> int:
        """Scan the whole pending list once; returns how many messages were taken over.

        Readers leave a slot for this scan, so that a worker that is always busy scans, too.
        """
        cursor, taken = _CURSOR_END, 0
        while (request := await self._wait_for_slots()) is not None:
            messages: list[Message] = []
            reservation = request.result()
            try:
                if reservation is not None and reservation.count:
                    cursor, messages = await self._claim(cursor, reservation.count)
            finally:
                self._release(reservation, len(messages))
            taken += self._take_over(messages)
            if cursor == _CURSOR_END:
                if self._share is not None:
                    self._share.mark_idle()  # until the next scan, even if all slots were used
                break
        return taken

    async def _wait_for_slots(self) -> asyncio.Task[Reservation | None] | None:
        """A granted request for slots. None if it was not granted in time; it stays open then."""
        request = self._request or asyncio.ensure_future(self._reserve())
        self._request = request
        done, _ = await asyncio.wait({request}, timeout=self._wait_s)
        if not done:
            return None
        self._request = None
        return request

    async def _reserve(self) -> Reservation | None:
        if self._share is not None:  # no more than this queue's share
            return await self._share.reserve(PAGE)
        return await self._slots.reserve_free(PAGE)

    def _release(self, reservation: Reservation | None, messages: int) -> None:
        if self._share is not None:
            self._share.release(reservation, messages)
        elif reservation is not None:
            reservation.release()

    def _take_over(self, messages: list[Message]) -> int:
        if messages:
            log.warning("took over %s whose lease expired", plural(len(messages), "message"))
            for message in messages:
                about = logs.job_extra(message.job_id)
                log.info("took over message %s", message.id, extra=about)
            self._counters.record_reclaimed(message.task for message in messages)
            self._admission.offer(messages)
        return len(messages)

    async def _claim(self, cursor: bytes, count: int) -> tuple[bytes, list[Message]]:
        worker = self._worker
        # Redis 7 adds a third element, the ids of deleted entries; 6.2 returns nil for them.
        reply: Any = await self._connection.execute_command(
            "XAUTOCLAIM", self._queue, worker.group, worker.consumer, worker.lease_ms, cursor,
            "COUNT", count,
        )  # fmt: skip
        if len(reply) > 2 and reply[2]:
            gone = plural(len(reply[2]), "pending message was", "pending messages were")
            log.error("%s deleted from the stream: %s", gone, reply[2])
        crashpoints.reach(CrashPoint.AFTER_CLAIM)
        return reply[0], [parse_message(entry) for entry in reply[1] if entry]
