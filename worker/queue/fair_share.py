"""Weighted fair sharing of the slots of one worker between the readers of several queues.

Each queue has its own reader. A reader whose last read found the queue empty waits in Redis and
reserves no slots. A reader whose last read returned as many messages as it asked for gets slots by
weight for as long as it finds more: the reader that has used the least for its weight comes first.
So no slot stays empty while any queue has messages, and no queue waits for the end of another's
backlog. A reader that is far ahead of another waits for the read that the other has in progress.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Final

from sluice.worker.queue.slots import Reservation, Slots

#: Seconds after which slots reserved for a server that does not answer go to other readers.
RESERVATION_TTL_S: Final = 0.25
#: Messages that a read may ask for at least, however many readers share the free slots.
MIN_MESSAGES: Final = 4
#: How far a reader may be ahead of another without waiting for it, in messages per slot and weight.
MAX_LEAD: Final = 2


class FairShare:
    """Distributes the free slots. Messages that were read before come before every reader."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._weights = 0
        #: Readers that have a backlog: they read or wait for slots.
        self._active: set[Share] = set()
        self._waiting_for_any: list[asyncio.Future[int]] = []
        self._waiting_for_share: list[
            tuple[float, int, Share, asyncio.Future[Reservation | None]]
        ] = []
        self._order = itertools.count()
        #: The least that an active reader has used. A reader that becomes active starts from here,
        #: so that it gains nothing from the time in which its queue was empty.
        self._min_used = 0.0
        self._serving: asyncio.Task[None] | None = None

    def join(self, weight: int = 1, *, reads: bool = True) -> Share:
        """Take part as a reader, or (`reads=False`) as a task that claims from time to time."""
        if reads:
            self._weights += weight
        return Share(self, weight)

    def quota(self, weight: int, free: int) -> int:
        """How many messages a reader may ask for without a reservation."""
        return max(1, free * weight // self._weights)

    @property
    def free(self) -> int:
        """Free slots that no message waits for."""
        return self._slots.free - self._slots.urgent

    async def wait_for_slot(self) -> int:
        """Wait for a free slot without reserving it; returns how many there are."""
        free = self.free
        if free > 0 or self._slots.interrupted:
            return max(free, 0)
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting_for_any.append(waiting)
        self._serve()
        return await waiting

    async def reserve(self, share: Share, most: int) -> Reservation | None:
        """Wait for a reservation; None after an interrupt."""
        self._activate(share)
        waiting: asyncio.Future[Reservation | None] = asyncio.get_running_loop().create_future()
        share.max_messages = most
        heapq.heappush(self._waiting_for_share, (share.used, next(self._order), share, waiting))
        self.distribute()
        if not waiting.done():
            self._serve()
        return await waiting

    def try_reserve(self, share: Share, most: int) -> Reservation | None:
        """A reservation for a prefetch; None if no slot is free or another reader comes first."""
        first = self._next_share()
        if (
            self.free <= 0
            or self._waiting_for_any
            or (first is not None and first.used < share.used)
        ):
            return None
        self._activate(share)
        if self._is_far_ahead(share):
            return None
        share.max_messages = most
        return self._grant(share)

    def _activate(self, share: Share) -> None:
        if share not in self._active:
            self._min_used = max(
                self._min_used, min((each.used for each in self._active), default=0.0)
            )
            share.used = max(share.used, self._min_used)
            self._active.add(share)

    def mark_idle(self, share: Share) -> None:
        """The reader found no more messages."""
        self._active.discard(share)
        self._min_used = max(self._min_used, share.used) if not self._active else self._min_used

    def _grant(self, share: Share) -> Reservation:
        weights = sum(each.weight for each in self._active)
        # A share of all slots, not of the free ones: shares of what one read returned would soon
        # shrink to single messages, with one read for each.
        count = max(self._slots.limit * share.weight // weights, MIN_MESSAGES)
        share.reservation = self._slots.reserve(min(count, self.free, share.max_messages))
        return share.reservation

    def _is_far_ahead(self, share: Share) -> bool:
        """True if the reader should wait for another whose read is in progress."""
        others = [each for each in self._active if not each.is_stuck]
        if len(others) < 2:
            return False
        weights = sum(each.weight for each in others)
        ahead = share.used - min(each.used for each in others)
        return ahead * weights > MAX_LEAD * self._slots.limit

    def _serve(self) -> None:
        if self._serving is None or self._serving.done():
            self._serving = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        slots = self._slots
        while self._waiting_for_any or self._waiting_for_share:
            await slots.wait_free()
            if slots.interrupted:
                self._dismiss()
                return
            self.distribute()
            if self._waiting_for_any or self._waiting_for_share:
                await slots.wait_change()

    def distribute(self) -> None:
        """Give the free slots to the readers that wait for them."""
        free = self.free
        if free > 0:
            waiters, self._waiting_for_any = self._waiting_for_any, []
            for each in waiters:
                if not each.done():
                    each.set_result(free)
        while self.free > 0 and (share := self._next_share()) is not None:
            if self._is_far_ahead(share):
                return
            _, _, _, waiting = heapq.heappop(self._waiting_for_share)
            waiting.set_result(self._grant(share))

    def _next_share(self) -> Share | None:
        """The waiting reader that has used the least. A prefetch may have raised `used` since."""
        queue = self._waiting_for_share
        while queue:
            used, order, share, waiting = queue[0]
            if waiting.done():
                heapq.heappop(queue)
            elif used < share.used:
                heapq.heapreplace(queue, (share.used, order, share, waiting))
            else:
                return share
        return None

    def _dismiss(self) -> None:
        for each in self._waiting_for_any:
            if not each.done():
                each.set_result(0)
        for _, _, _, waiting in self._waiting_for_share:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting_for_any.clear()
        self._waiting_for_share.clear()


class Share:
    """The share of one reader."""

    def __init__(self, fair_share: FairShare, weight: int) -> None:
        self._fair_share = fair_share
        self.weight = weight
        #: Messages taken so far, divided by the weight.
        self.used = 0.0
        #: How many messages the reader asked for last.
        self.max_messages = 0
        self.reservation: Reservation | None = None

    @property
    def is_stuck(self) -> bool:
        """True if its server has not answered in time. Other readers do not wait for it."""
        return self.reservation is not None and self.reservation.expired

    async def wait_for_slot(self) -> int:
        """Wait for a free slot; returns how many messages to ask for without a reservation."""
        free = await self._fair_share.wait_for_slot()
        return self._fair_share.quota(self.weight, free) if free else 0

    async def reserve(self, most: int) -> Reservation | None:
        """Wait for slots for at most `most` messages; None after an interrupt.

        `release` must follow.
        """
        try:
            return await self._fair_share.reserve(self, most)
        except BaseException:
            self._fair_share.mark_idle(self)
            raise

    def try_reserve(self, most: int) -> Reservation | None:
        """Reserve free slots for at most `most` messages, without waiting; None if that is not
        possible. `charge_prefetched` must follow."""
        return self._fair_share.try_reserve(self, most)

    def charge_prefetched(self, messages: int) -> None:
        """Account for prefetched messages."""
        self.charge(messages)
        self.reservation = None

    def release(self, reservation: Reservation | None, messages: int = 0) -> None:
        """Free the slots and account for the messages of the read."""
        self.charge(messages)
        self.reservation = None
        if reservation is not None:
            reservation.release()
        if reservation is None or messages < reservation.count:
            self._fair_share.mark_idle(self)

    def mark_idle(self) -> None:
        """The queue is probably empty: let the readers that wait for this one continue."""
        self._fair_share.mark_idle(self)
        self._fair_share.distribute()

    def charge(self, messages: int) -> None:
        """Account for messages taken."""
        self.used += messages / self.weight
