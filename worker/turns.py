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

from worker.slots import Reservation, Slots

#: Places that are held for a server which does not answer are given to others after so long.
LAPSE_S: Final = 0.25
#: Messages that a read may ask for however many take turns, as long as there are places.
SMALLEST: Final = 4
#: How far a reader may be ahead of another, in messages for each place and weight: reads that are
#: under way keep nobody waiting who is only a little ahead.
AHEAD: Final = 2


class Turns:
    """Gives readers their places. Who has messages in hand that only want a place comes first."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        slots.lapse_s = LAPSE_S
        self._weights = 0
        #: Those who read on, or are waiting to.
        self._active: set[Turn] = set()
        self._looking: list[asyncio.Future[int]] = []
        self._asking: list[tuple[float, int, Turn, asyncio.Future[Reservation | None]]] = []
        self._order = itertools.count()
        #: What the one of them has had who has had least. Whoever had nothing to read for a while
        #: has saved up nothing.
        self._least = 0.0
        self._serving: asyncio.Task[None] | None = None

    def join(self, weight: int = 1, *, reads: bool = True) -> Turn:
        """Take part, as a reader or as somebody who looks for messages now and then."""
        if reads:
            self._weights += weight
        return Turn(self, weight)

    def share(self, weight: int, free: int) -> int:
        """How many messages a reader may ask for that holds no place for them."""
        return max(1, free * weight // self._weights)

    @property
    def free(self) -> int:
        """Places that nobody has a better right to."""
        return self._slots.free - self._slots.wanted

    async def look(self) -> int:
        """Wait until there is a place, for whoever comes first; returns how many there are."""
        free = self.free
        if free > 0 or self._slots.interrupted:
            return max(free, 0)
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._looking.append(waiting)
        self._serve()
        return await waiting

    async def take(self, turn: Turn, most: int) -> Reservation | None:
        """Wait for places of one's own; None when nobody gets any more."""
        self._activate(turn)
        waiting: asyncio.Future[Reservation | None] = asyncio.get_running_loop().create_future()
        turn.most = most
        heapq.heappush(self._asking, (turn.had, next(self._order), turn, waiting))
        self.hand_out()
        if not waiting.done():
            self._serve()
        return await waiting

    def ride(self, turn: Turn, most: int) -> Reservation | None:
        """Places for messages that come along with a report, unless somebody else comes first."""
        first = self._first()
        if self.free <= 0 or self._looking or (first is not None and first.had < turn.had):
            return None
        self._activate(turn)
        if self._is_far_ahead(turn):
            return None
        turn.most = most
        return self._grant(turn)

    def _activate(self, turn: Turn) -> None:
        if turn not in self._active:
            self._least = max(self._least, min((each.had for each in self._active), default=0.0))
            turn.had = max(turn.had, self._least)
            self._active.add(turn)

    def rest(self, turn: Turn) -> None:
        """It has nothing to read just now."""
        self._active.discard(turn)
        self._least = max(self._least, turn.had) if not self._active else self._least

    def _grant(self, turn: Turn) -> Reservation:
        weights = sum(each.weight for each in self._active)
        # A share of all places, not of those that happen to be free: shares of shares of what one
        # read has brought would soon be single messages, and a read for each.
        share = max(self._slots.limit * turn.weight // weights, SMALLEST)
        turn.places = self._slots.hold_for(min(share, self.free, turn.most))
        return turn.places

    def _is_far_ahead(self, turn: Turn) -> bool:
        """Whether it should wait for somebody whose read is under way and will not take long."""
        others = [each for each in self._active if not each.is_stuck]
        if len(others) < 2:
            return False
        weights = sum(each.weight for each in others)
        ahead = turn.had - min(each.had for each in others)
        return ahead * weights > AHEAD * self._slots.limit

    def _serve(self) -> None:
        if self._serving is None or self._serving.done():
            self._serving = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        slots = self._slots
        while self._looking or self._asking:
            await slots.wait_free()
            if slots.interrupted:
                self._send_away()
                return
            self.hand_out()
            if self._looking or self._asking:
                await slots.wait_change()

    def hand_out(self) -> None:
        """Give what is free to those who wait for it."""
        free = self.free
        if free > 0:
            looking, self._looking = self._looking, []
            for each in looking:
                if not each.done():
                    each.set_result(free)
        while self.free > 0 and (turn := self._first()) is not None:
            if self._is_far_ahead(turn):
                return
            _, _, _, waiting = heapq.heappop(self._asking)
            waiting.set_result(self._grant(turn))

    def _first(self) -> Turn | None:
        """Whose turn it is of those who ask. Messages may have come along since they did."""
        asking = self._asking
        while asking:
            had, order, turn, waiting = asking[0]
            if waiting.done():
                heapq.heappop(asking)
            elif had < turn.had:
                heapq.heapreplace(asking, (turn.had, order, turn, waiting))
            else:
                return turn
        return None

    def _send_away(self) -> None:
        for looking in self._looking:
            if not looking.done():
                looking.set_result(0)
        for _, _, _, waiting in self._asking:
            if not waiting.done():
                waiting.set_result(None)
        self._looking.clear()
        self._asking.clear()


class Turn:
    """One reader's part in it."""

    def __init__(self, turns: Turns, weight: int) -> None:
        self._turns = turns
        self.weight = weight
        #: Messages taken so far, for its weight.
        self.had = 0.0
        self.most = 0
        self.places: Reservation | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether its server takes long to answer: nobody waits for that."""
        return self.places is not None and self.places.lapsed

    async def look(self) -> int:
        """Wait until there is a place; returns how many messages to ask for without one."""
        free = await self._turns.look()
        return self._turns.share(self.weight, free) if free else 0

    async def take(self, most: int) -> Reservation | None:
        """Wait for places for at most so many messages; None when nobody gets any more.

        `end` must follow.
        """
        try:
            return await self._turns.take(self, most)
        except BaseException:
            self._turns.rest(self)
            raise

    def ride(self, most: int) -> Reservation | None:
        """Places that are free now, for at most so many messages. `arrived` must follow."""
        return self._turns.ride(self, most)

    def arrived(self, messages: int) -> None:
        """So many came along; whose places they have is known."""
        self.pay(messages)
        self.places = None

    def end(self, places: Reservation | None, messages: int = 0) -> None:
        """The places are needed no longer; so many messages came."""
        self.pay(messages)
        self.places = None
        if places is not None:
            places.end()
        if places is None or messages < places.count:
            self._turns.rest(self)

    def rest(self) -> None:
        """There is nothing to read just now, as far as is known: who waited for us need not."""
        self._turns.rest(self)
        self._turns.hand_out()

    def pay(self, messages: int) -> None:
        """So many messages came."""
        self.had += messages / self.weight
