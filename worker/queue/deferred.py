"""Messages that are ours and may not run yet: their time has not come, or there is no place."""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError, ResponseError

from common.contracts.jobs import LEASE_MAX_MS
from common.jobs.store import WorkerIdentity
from common.process import crashpoints
from common.process.crashpoints import CrashPoint
from common.redis.connection import TRANSIENT_ERRORS
from common.redis.pipelined import CommandClient
from common.text import plural
from worker.queue.messages import Message, parse_message
from worker.queue.slots import Reservation, Slots

log = logging.getLogger(__name__)

#: Messages claimed by one command.
PAGE = 64
#: How long a message waits for a place here before other workers may have it too, where we took
#: it without having one.
EXCLUSIVE_S = 0.05
_BACKOFF_S = 0.5

OfferFunction = Callable[[list[Message]], None]
#: Messages, and the places that are held for them.
_ReservedIds = tuple[list[str], Reservation]


class DeferredMessages:
    """Remembers message ids only, and asks Redis for the messages again when they may run.

    They stay pending all the while. Should this worker die, another claims them after a lease.
    """

    def __init__(
        self, connection: CommandClient, queue: str, worker: WorkerIdentity, slots: Slots
    ) -> None:
        self._connection = connection
        self._queue = queue
        self._worker = worker
        self._slots = slots
        #: By the time they are due. Of a message that was added again, only its first one counts.
        self._waiting: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        #: Of those, the ones that anybody may have.
        self._offered: set[str] = set()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    @property
    def offered(self) -> int:
        """How many of them other workers may have, too."""
        return len(self._offered)

    def add(self, message_id: str, delay_s: float = 0.0) -> None:
        """Run a message after a while, as soon as there is a place for it."""
        due = asyncio.get_running_loop().time() + delay_s
        known = self._due.get(message_id)
        if known is not None and known <= due:
            return
        self._due[message_id] = due
        heapq.heappush(self._waiting, (due, message_id))
        self._changed.set()

    async def run(self, offer: OfferFunction) -> None:
        """Hand over messages whose time has come until interrupted."""
        while not self._slots.interrupted:
            try:
                await self.run_once(offer)
                continue
            except (RedisError, *TRANSIENT_ERRORS) as error:
                waiting = plural(len(self), "message goes", "messages go")
                log.warning("redis: %s; %s on waiting", error, waiting)
            except Exception:  # whatever it is, they must not be forgotten
                log.exception("%s on waiting", plural(len(self), "message goes", "messages go"))
            await asyncio.sleep(_BACKOFF_S * random.uniform(0.5, 1.0))

    async def run_once(self, offer: OfferFunction) -> None:
        """Wait until a message is due and has a place, then hand over all that are and have."""
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
        """Wait for places. Where queues share them, messages are taken without one: those that
        find none for long are offered to other workers meanwhile."""
        if self._slots.reservation_ttl_s is None:
            return await self._reserve_slots()
        taking = asyncio.ensure_future(self._reserve_slots())
        try:
            while not taking.done():
                await asyncio.wait({taking}, timeout=EXCLUSIVE_S)
                if not taking.done():
                    await self._offer_to_others()
        except BaseException:
            if not taking.cancel():
                ids, reservation = taking.result()
                self._put_back(ids)
                reservation.release()
            raise
        return taking.result()

    async def _reserve_slots(self) -> _ReservedIds:
        """Held in the step that finds them, and before we ask for the messages: or else readers
        might fill the places meanwhile, again and again."""
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
        """Messages whose time is far away must not look like those of a worker that fell silent."""
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
        """What was acknowledged meanwhile does not come; what somebody else runs, BEGIN refuses."""
        entries = await self._claim([each for each in ids if each not in self._offered])
        offered = [each for each in ids if each in self._offered]
        if offered:  # as long as nobody has them
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
            return []  # the reader makes a new group, which is handed everything again
        return reply
