"""Whose turn it is to take messages, where several queues share the places of one worker.

Each queue has a reader of its own. One whose queue was empty when it last looked goes on waiting in
Redis, and holds no place for that. One that found as much as it had asked for is given places, by
weight, as long as it finds more: whoever has had least for its weight comes first. So no place
stays empty while any queue has work, and no queue waits for the end of another's backlog. One that
is far ahead of another waits for that one's next read, which is under way already.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Final

from worker.queue.slots import Reservation, Slots

#: Places that are held for a server which does not answer are given to others after so long.
RESERVATION_TTL_S: Final = 0.25
#: Messages that a read may ask for however many take turns, as long as there are places.
MIN_MESSAGES: Final = 4
#: How far a reader may be ahead of another, in messages for each place and weight: reads that are
#: under way keep nobody waiting who is only a little ahead.
MAX_LEAD: Final = 2


class FairShare:
    """Gives readers their places. Who has messages in hand that only want a place comes first."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._weights = 0
        #: Those who read on, or are waiting to.
        self._active: set[Share] = set()
        self._waiting_for_any: list[asyncio.Future[int]] = []
        self._waiting_for_share: list[
            tuple[float, int, Share, asyncio.Future[Reservation | None]]
        ] = []
        self._order = itertools.count()
        #: What the one of them has had who has had least. Whoever had nothing to read for a while
        #: has saved up nothing.
        self._min_used = 0.0
        self._serving: asyncio.Task[None] | None = None

    def join(self, weight: int = 1, *, reads: bool = True) -> Share:
        """Take part, as a reader or as somebody who looks for messages now and then."""
        if reads:
            self._weights += weight
        return Share(self, weight)

    def quota(self, weight: int, free: int) -> int:
        """How many messages a reader may ask for that holds no place for them."""
        return max(1, free * weight // self._weights)

    @property
    def free(self) -> int:
        """Places that nobody has a better right to."""
        return self._slots.free - self._slots.urgent

    async def wait_for_slot(self) -> int:
        """Wait until there is a place, for whoever comes first; returns how many there are."""
        free = self.free
        if free > 0 or self._slots.interrupted:
            return max(free, 0)
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting_for_any.append(waiting)
        self._serve()
        return await waiting

    async def reserve(self, share: Share, most: int) -> Reservation | None:
        """Wait for places of one's own; None when nobody gets any more."""
        self._activate(share)
        waiting: asyncio.Future[Reservation | None] = asyncio.get_running_loop().create_future()
        share.max_messages = most
        heapq.heappush(self._waiting_for_share, (share.used, next(self._order), share, waiting))
        self.distribute()
        if not waiting.done():
            self._serve()
        return await waiting

    def try_reserve(self, share: Share, most: int) -> Reservation | None:
        """Places for messages that come along with a report, unless somebody else comes first."""
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
        """It has nothing to read just now."""
        self._active.discard(share)
        self._min_used = max(self._min_used, share.used) if not self._active else self._min_used

    def _grant(self, share: Share) -> Reservation:
        weights = sum(each.weight for each in self._active)
        # A share of all places, not of those that happen to be free: shares of shares of what one
        # read has brought would soon be single messages, and a read for each.
        count = max(self._slots.limit * share.weight // weights, MIN_MESSAGES)
        share.reservation = self._slots.reserve(min(count, self.free, share.max_messages))
        return share.reservation

    def _is_far_ahead(self, share: Share) -> bool:
        """Whether it should wait for somebody whose read is under way and will not take long."""
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
        """Give what is free to those who wait for it."""
        free = self.free
        if free > 0:
            looking, self._waiting_for_any = self._waiting_for_any, []
            for each in looking:
                if not each.done():
                    each.set_result(free)
        while self.free > 0 and (share := self._next_share()) is not None:
            if self._is_far_ahead(share):
                return
            _, _, _, waiting = heapq.heappop(self._waiting_for_share)
            waiting.set_result(self._grant(share))

    def _next_share(self) -> Share | None:
        """Whose turn it is of those who ask. Messages may have come along since they did."""
        asking = self._waiting_for_share
        while asking:
            used, order, share, waiting = asking[0]
            if waiting.done():
                heapq.heappop(asking)
            elif used < share.used:
                heapq.heapreplace(asking, (share.used, order, share, waiting))
            else:
                return share
        return None

    def _dismiss(self) -> None:
        for looking in self._waiting_for_any:
            if not looking.done():
                looking.set_result(0)
        for _, _, _, waiting in self._waiting_for_share:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting_for_any.clear()
        self._waiting_for_share.clear()


class Share:
    """One reader's part in it."""

    def __init__(self, fair_share: FairShare, weight: int) -> None:
        self._fair_share = fair_share
        self.weight = weight
        #: Messages taken so far, for its weight.
        self.used = 0.0
        self.max_messages = 0
        self.reservation: Reservation | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether its server takes long to answer: nobody waits for that."""
        return self.reservation is not None and self.reservation.expired

    async def wait_for_slot(self) -> int:
        """Wait until there is a place; returns how many messages to ask for without one."""
        free = await self._fair_share.wait_for_slot()
        return self._fair_share.quota(self.weight, free) if free else 0

    async def reserve(self, most: int) -> Reservation | None:
        """Wait for places for at most so many messages; None when nobody gets any more.

        `end` must follow.
        """
        try:
            return await self._fair_share.reserve(self, most)
        except BaseException:
            self._fair_share.mark_idle(self)
            raise

    def try_reserve(self, most: int) -> Reservation | None:
        """Places that are free now, for at most so many messages. `arrived` must follow."""
        return self._fair_share.try_reserve(self, most)

    def charge_prefetched(self, messages: int) -> None:
        """So many came along; whose places they have is known."""
        self.charge(messages)
        self.reservation = None

    def release(self, reservation: Reservation | None, messages: int = 0) -> None:
        """The places are needed no longer; so many messages came."""
        self.charge(messages)
        self.reservation = None
        if reservation is not None:
            reservation.release()
        if reservation is None or messages < reservation.count:
            self._fair_share.mark_idle(self)

    def mark_idle(self) -> None:
        """There is nothing to read just now, as far as is known: who waited for us need not."""
        self._fair_share.mark_idle(self)
        self._fair_share.distribute()

    def charge(self, messages: int) -> None:
        self.used += messages / self.weight
