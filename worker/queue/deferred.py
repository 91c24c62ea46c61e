"""Messages of this worker that cannot run yet: they are not due, or no slot is free."""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError, ResponseError

from sluice.common.contracts.jobs import LEASE_MAX_MS
from sluice.common.jobs.store import WorkerIdentity
from sluice.common.process import crashpoints
from sluice.common.process.crashpoints import CrashPoint
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.pipelined import CommandClient
from sluice.common.text import plural
from sluice.worker.queue.messages import Message, parse_message
from sluice.worker.queue.slots import Reservation, Slots

log = logging.getLogger(__name__)

#: Messages claimed by one command.
PAGE = 64
#: With several queues: seconds that a message read without a free slot waits here before other
#: workers may claim it, too.
EXCLUSIVE_S = 0.05
_BACKOFF_S = 0.5

OfferFunction = Callable[[list[Message]], None]
#: Message ids, and the slots reserved for them.
_ReservedIds = tuple[list[str], Reservation]


class DeferredMessages:
    """Keeps only message ids, and reads the messages again from Redis when they can run.

    The messages stay pending meanwhile. If this worker dies, another one claims them after a lease.
    """

    def __init__(
        self, connection: CommandClient, queue: str, worker: WorkerIdentity, slots: Slots
    ) -> None:
        self._connection = connection
        self._queue = queue
        self._worker = worker
        self._slots = slots
        #: Heap by due time. If a message was added more than once, the earliest time counts.
        self._waiting: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        #: Messages that other workers may claim as well.
        self._offered: set[str] = set()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    @property
    def offered(self) -> int:
        """How many of the messages other workers may claim as well."""
        return len(self._offered)

    def add(self, message_id: str, delay_s: float = 0.0) -> None:
        """Run a message after `delay_s`, as soon as a slot is free."""
        due = asyncio.get_running_loop().time() + delay_s
        known = self._due.get(message_id)
        if known is not None and known <= due:
            return
        self._due[message_id] = due
        heapq.heappush(self._waiting, (due, message_id))
        self._changed.set()

    async def run(self, offer: OfferFunction) -> None:
        """Offer messages that are due until interrupted."""
        while not self._slots.interrupted:
            try:
                await self.run_once(offer)
                continue
            except (RedisError, *TRANSIENT_ERRORS) as error:
                waiting = plural(len(self), "deferred message waits", "deferred messages wait")
                log.warning("redis: %s; %s longer", error, waiting)
            except Exception:  # the loop must continue after any error
                waiting = plural(len(self), "message waits", "messages wait")
                log.exception("deferred messages failed unexpectedly; %s longer", waiting)
            await asyncio.sleep(_BACKOFF_S * random.uniform(0.5, 1.0))

    async def run_once(self, offer: OfferFunction) -> None:
        """Wait until a message is due and has a slot, then offer all such messages."""
        await self._wait_due()
        ids, reservation = await self._wait_for_slots()
        messages: list[Message] = []
        try:
            messages = await self._fetch(ids)
            crashpoints.reach(CrashPoint.AFTER_CLAIM)
        except BaseException:
            self._put_back(ids)
            raise
        finally:
            reservation.release()
        if messages:
            offer(messages)

    async def _wait_for_slots(self) -> _ReservedIds:
        """Wait for slots. If several queues share them, messages are read without a reservation:
        those that wait long for a slot are offered to other workers meanwhile."""
        if self._slots.reservation_ttl_s is None:
            return await self._reserve_slots()
        reserving = asyncio.ensure_future(self._reserve_slots())
        try:
            while not reserving.done():
                await asyncio.wait({reserving}, timeout=EXCLUSIVE_S)
                if not reserving.done():
                    await self._offer_to_others()
        except BaseException:
            if not reserving.cancel():
                ids, reservation = reserving.result()
                self._put_back(ids)
                reservation.release()
            raise
        return reserving.result()

    async def _reserve_slots(self) -> _ReservedIds:
        """Reserve free slots in the step that finds them, and before the messages are read again.
        Otherwise readers could fill the slots meanwhile, again and again."""
        free = await self._slots.wait_free_urgent()
        ids = [] if self._slots.interrupted else self._pop_due(min(free, PAGE))
        return ids, self._slots.reserve(len(ids))

    def _put_back(self, ids: list[str]) -> None:
        for message_id in ids:
            self.add(message_id)

    async def _offer_to_others(self) -> None:
        now = asyncio.get_running_loop().time()
        ids = [each for each, due in self._due.items() if due <= now and each not in self._offered]
        for start in range(0, len(ids), PAGE):
            page = ids[start : start + PAGE]
            await self._claim(page, "IDLE", LEASE_MAX_MS, "JUSTID")
            self._offered.update(page)

    async def renew(self) -> None:
        """Renew messages that are due later, so that no other worker takes them over."""
        now = asyncio.get_running_loop().time()
        later = [message_id for message_id, due in self._due.items() if due > now]
        for start in range(0, len(later), PAGE):
            await self._claim(later[start : start + PAGE], "JUSTID")

    async def _wait_due(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._waiting or self._waiting[0][0] > loop.time():
            self._changed.clear()
            timeout_s = self._waiting[0][0] - loop.time() if self._waiting else None
            waiting = asyncio.ensure_future(self._changed.wait())
            await asyncio.wait({waiting}, timeout=timeout_s)
            waiting.cancel()

    def _pop_due(self, count: int) -> list[str]:
        now = asyncio.get_running_loop().time()
        ids: list[str] = []
        while self._waiting and len(ids) < count and self._waiting[0][0] <= now:
            due, message_id = heapq.heappop(self._waiting)
            if self._due.get(message_id) == due:
                del self._due[message_id]
                ids.append(message_id)
        return ids

    async def _fetch(self, ids: list[str]) -> list[Message]:
        """Read messages again. Acknowledged ones are not returned; for one whose job runs in
        another worker, BEGIN refuses the attempt."""
        entries = await self._claim([each for each in ids if each not in self._offered])
        offered = [each for each in ids if each in self._offered]
        if offered:  # only those that no other worker has claimed
            entries += await self._claim(offered, idle_ms=self._worker.lease_ms)
            self._offered.difference_update(offered)
        return [parse_message(entry) for entry in entries if entry]

    async def _claim(self, ids: list[str], *how: str | int, idle_ms: int = 0) -> list[Any]:
        if not ids:
            return []
        worker = self._worker
        try:
            reply: list[Any] = await self._connection.execute_command(
                "XCLAIM", self._queue, worker.group, worker.consumer, idle_ms, *ids, *how
            )
        except ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            return []  # the reader creates a new group, which is delivered every message again
        return reply
