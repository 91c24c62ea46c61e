"""Turns messages into running jobs, within the limits of the worker."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from sluice.worker.execution.executor import Executor
from sluice.worker.queue.claim import ClaimedJob, Claimer
from sluice.worker.queue.deferred import DeferredMessages
from sluice.worker.queue.limits import TaskLimits
from sluice.worker.queue.messages import Message
from sluice.worker.queue.slots import Reservation, Slots
from sluice.worker.queue.wait_queue import WaitingMessages


class Admission:
    """Admits messages that were read, claimed, deferred, or taken from a wait queue.

    A message without a free slot is deferred, so that the limit holds even when the reader and the
    recovery counted on the same slots. If the task has no free slot, the message goes to the wait
    queue.
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
        #: Messages that wait for the reply of Redis before their jobs start.
        self._starting = Slots(slots.free)

    @property
    def accepting(self) -> bool:
        """True if more messages may be read: not too many wait for a slot of their task, or for a
        reply of Redis."""
        return not self._waiting.full and self._starting.free > 0

    def offer_waiting(self, messages: list[Message]) -> None:
        """Run messages that were taken from the wait queues."""
        self.offer(messages, from_wait_queue=True)

    def offer(self, messages: list[Message], *, from_wait_queue: bool = False) -> None:
        """Run the messages that have a free slot now, and the others later."""
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
        admitted: list[Message] = []
        limited: list[Message] = []
        for message in messages:
            if len(admitted) == free and self._limits.capacity(message.limit_key):
                self._deferred.add(message.id)
            elif len(admitted) < free and self._limits.acquire(
                message, from_wait_queue=from_wait_queue
            ):
                admitted.append(message)
            elif not self._limits.holds(message):
                limited.append(message)
        if limited:
            self._waiting.put(limited)
        return admitted

    async def wait_started(self, timeout_s: float) -> bool:
        """Wait until every offered message runs or is settled; False after the timeout."""
        return await self._starting.wait_idle(timeout_s)

    async def cancel(self) -> None:
        """Abandon offered messages that do not run yet; they stay pending."""
        await self._starting.cancel()

    def track(self, start_jobs: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine that starts prefetched jobs, and wait for it in `wait_started`."""
        self._starting.start(start_jobs)

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
        """Run attempts in the slots that were reserved for them."""
        late = reservation.expired
        reservation.release()
        for job in jobs:
            if late and self._slots.free <= 0:  # other jobs took the slots meanwhile
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
