"""Where messages become running jobs, however they were come by, and never too many at once."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from worker.deferred import Deferred
from worker.executor import Executor
from worker.intake import Attempt, Intake
from worker.limits import TaskLimits
from worker.messages import Message
from worker.slots import Reservation, Slots
from worker.waiting import Waiting


class Admission:
    """Read, claimed, deferred or called: every message comes through here.

    What finds no free place goes to the deferred ones, so that the cap is never exceeded, even
    when reader and recovery asked for the same places. What finds no place of its task waits.
    """

    def __init__(
        self,
        slots: Slots,
        limits: TaskLimits,
        intake: Intake,
        executor: Executor,
        deferred: Deferred,
        waiting: Waiting,
    ) -> None:
        self._slots = slots
        self._limits = limits
        self._intake = intake
        self._executor = executor
        self._deferred = deferred
        self._waiting = waiting
        self._admitting = Slots(slots.free)

    @property
    def open(self) -> bool:
        """Whether more messages may be read: not while too many wait for a place already, or for
        an answer of Redis."""
        return not self._waiting.full and self._admitting.free > 0

    def call(self, messages: list[Message]) -> None:
        """Run messages that have waited for a place."""
        self.offer(messages, called=True)

    def offer(self, messages: list[Message], *, called: bool = False) -> None:
        """Run messages, those that find a place now, the others later."""
        free = max(self._slots.free, 0)
        if self._limits:
            messages = self._let_in(messages, free, called)
        elif len(messages) > free:
            for message in messages[free:]:
                self._deferred.add(message.id)
            messages = messages[:free]
        if messages:
            self._admitting.start(self._admit(messages, self._slots.hold_for(len(messages))))

    def _let_in(self, messages: list[Message], free: int, called: bool) -> list[Message]:
        inside: list[Message] = []
        outside: list[Message] = []
        for message in messages:
            if len(inside) == free and self._limits.room(message.kind):
                self._deferred.add(message.id)
            elif len(inside) < free and self._limits.enter(message, called=called):
                inside.append(message)
            elif not self._limits.inside(message):
                outside.append(message)
        if outside:
            self._waiting.put(outside)
        return inside

    async def settle(self, timeout_s: float) -> bool:
        """Wait until every message that was offered runs or is settled; False when time is up."""
        return await self._admitting.wait_idle(timeout_s)

    async def cancel(self) -> None:
        """Give up on messages that were offered but do not run yet; they stay pending."""
        await self._admitting.cancel()

    def expect(self, arrival: Coroutine[Any, Any, None]) -> None:
        """Messages are on their way, and begun already."""
        self._admitting.start(arrival)

    async def _admit(self, messages: list[Message], places: Reservation) -> None:
        attempts: list[Attempt] = []
        try:
            attempts = await self._intake.admit(messages)
        except BaseException:
            places.end()
            raise
        finally:
            if self._limits:
                self._give_back_places(messages, attempts)
        await self.start(attempts, places)

    async def start(self, attempts: Sequence[Attempt], places: Reservation) -> None:
        """Run attempts in places that were held for them."""
        late = places.lapsed
        places.end()
        for attempt in attempts:
            if late and self._slots.free <= 0:  # others have the places meanwhile
                await self._executor.hand_back(attempt)
            else:
                self._slots.start(self._executor.run(attempt))

    def _give_back_places(self, messages: list[Message], attempts: list[Attempt]) -> None:
        running = {attempt.lease.message_id for attempt in attempts}
        for message in messages:
            if message.id in running:
                self._limits.admitted(message.kind, message.id)
            else:
                self._limits.leave(message.kind, message.id)
