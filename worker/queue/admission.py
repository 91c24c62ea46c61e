"""Where messages become running jobs, however they were come by, and never too many at once."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from worker.execution.executor import Executor
from worker.queue.claim import ClaimedJob, Claimer
from worker.queue.deferred import DeferredMessages
from worker.queue.limits import TaskLimits
from worker.queue.messages import Message
from worker.queue.slots import Reservation, Slots
from worker.queue.wait_queue import WaitingMessages


class Admission:
    """Read, claimed, deferred or called: every message comes through here.

    What finds no free place goes to the deferred ones, so that the cap is never exceeded, even
    when reader and recovery asked for the same places. What finds no place of its task waits.
    """

    def __init__(
        self,
        slots: Slots,
        limits: TaskLimits,
        claimer: Claimer,
        executor: Executor,
        deferred: DeferredMessages,
        waiting: WaitingMessages,
    ) -> None:
        self._slots = slots
        self._limits = limits
        self._claimer = claimer
        self._executor = executor
        self._deferred = deferred
        self._waiting = waiting
        self._starting = Slots(slots.free)

    @property
    def accepting(self) -> bool:
        """Whether more messages may be read: not while too many wait for a place already, or for
        an answer of Redis."""
        return not self._waiting.full and self._starting.free > 0

    def offer_waiting(self, messages: list[Message]) -> None:
        """Run messages that have waited for a place."""
        self.offer(messages, from_wait_queue=True)

    def offer(self, messages: list[Message], *, from_wait_queue: bool = False) -> None:
        """Run messages, those that find a place now, the others later."""
        free = max(self._slots.free, 0)
        if self._limits:
            messages = self._apply_limits(messages, free, from_wait_queue)
        elif len(messages) > free:
            for message in messages[free:]:
                self._deferred.add(message.id)
            messages = messages[:free]
        if messages:
            self._starting.start(self._admit(messages, self._slots.reserve(len(messages))))

    def _apply_limits(
        self, messages: list[Message], free: int, from_wait_queue: bool
    ) -> list[Message]:
        inside: list[Message] = []
        outside: list[Message] = []
        for message in messages:
            if len(inside) == free and self._limits.capacity(message.limit_key):
                self._deferred.add(message.id)
            elif len(inside) < free and self._limits.acquire(
                message, from_wait_queue=from_wait_queue
            ):
                inside.append(message)
            elif not self._limits.holds(message):
                outside.append(message)
        if outside:
            self._waiting.put(outside)
        return inside

    async def wait_started(self, timeout_s: float) -> bool:
        """Wait until every message that was offered runs or is settled; False when time is up."""
        return await self._starting.wait_idle(timeout_s)

    async def cancel(self) -> None:
        """Give up on messages that were offered but do not run yet; they stay pending."""
        await self._starting.cancel()

    def track(self, arrival: Coroutine[Any, Any, None]) -> None:
        """Messages are on their way, and begun already."""
        self._starting.start(arrival)

    async def _admit(self, messages: list[Message], reservation: Reservation) -> None:
        jobs: list[ClaimedJob] = []
        try:
            jobs = await self._claimer.claim(messages)
        except BaseException:
            reservation.release()
            raise
        finally:
            if self._limits:
                self._release_limits(messages, jobs)
        await self.start(jobs, reservation)

    async def start(self, jobs: Sequence[ClaimedJob], reservation: Reservation) -> None:
        """Run attempts in places that were held for them."""
        late = reservation.expired
        reservation.release()
        for job in jobs:
            if late and self._slots.free <= 0:  # others have the places meanwhile
                await self._executor.release_unstarted(job)
            else:
                self._slots.start(self._executor.run(job))

    def _release_limits(self, messages: list[Message], jobs: list[ClaimedJob]) -> None:
        running = {job.lease.message_id for job in jobs}
        for message in messages:
            if message.id in running:
                self._limits.on_admitted(message.limit_key, message.id)
            else:
                self._limits.release(message.limit_key, message.id)
