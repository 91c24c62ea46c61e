"""The slots in which jobs run: at most a fixed number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

#: Seconds that canceled tasks get to clean up.
CANCEL_TIMEOUT_S = 5.0


class Reservation:
    """Slots held for jobs that are being fetched, until `release`.

    If other queues need the slots too, a reservation expires: they must not stay empty because one
    server does not answer.
    """

    __slots__ = ("_slots", "_timer", "count", "expired")

    def __init__(self, slots: Slots, count: int) -> None:
        self._slots = slots
        self.count = count
        #: True if the slots are no longer held, and may be in use by other jobs.
        self.expired = False
        self._timer: asyncio.TimerHandle | None = None
        slots.add_reserved(count)
        if slots.reservation_ttl_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(slots.reservation_ttl_s, self._expire)

    def release(self) -> None:
        """Free the slots. May be called more than once."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.expired:
            self.expired = True
            self._slots.remove_reserved(self.count)

    def _expire(self) -> None:
        self.release()


class Slots:
    """A bounded set of tasks, with reservations."""

    def __init__(self, limit: int, reservation_ttl_s: float | None = None) -> None:
        self.limit = limit
        #: Seconds after which a reservation expires. None for never: a single queue's reservations
        #: all wait for the same server.
        self.reservation_ttl_s = reservation_ttl_s
        self._tasks: set[asyncio.Task[Any]] = set()
        self._finishing: set[asyncio.Task[Any]] = set()
        self._reserved = 0
        #: How many callers have messages already and wait for a slot. They come before readers.
        self.urgent = 0
        #: Reasons for which nothing may start.
        self._suspended_by: set[str] = set()
        self.interrupted = False
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()

    @property
    def free(self) -> int:
        """How many more tasks may start.

        A task that only has its report left to send does not count, for up to `limit` such tasks.
        """
        if self._suspended_by:
            return 0
        finishing = min(len(self._finishing), self.limit)
        return self.limit - (len(self._tasks) - finishing) - self._reserved

    @property
    def busy(self) -> int:
        return len(self._tasks)

    @property
    def suspended(self) -> bool:
        """True if nothing may start, however few tasks run."""
        return bool(self._suspended_by)

    def add_reserved(self, count: int) -> None:
        self._reserved += count

    def remove_reserved(self, count: int) -> None:
        self._reserved -= count
        self._changed.set()

    def reserve(self, count: int) -> Reservation:
        """Hold slots; the caller must release the reservation."""
        return Reservation(self, count)

    def suspend(self, why: str) -> None:
        """Let nothing start until `resume` is called with the same reason."""
        self._suspended_by.add(why)

    def resume(self, why: str) -> None:
        """Let tasks start again, unless there is another reason not to."""
        self._suspended_by.discard(why)
        self._changed.set()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` in a slot. The caller has made sure that one is free."""
        task = asyncio.get_running_loop().create_task(work, name="job")
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def mark_finishing(self, task: asyncio.Task[Any] | None) -> None:
        """Free the slot of a task whose handler has ended and whose report is not sent yet.

        The next fetch is sent together with the report. Redis runs it after the report, on the same
        connection, so that no more jobs than slots are running in Redis either. Exceptions are
        reports that have to be repeated, and reports that do not fit into one call.
        """
        if task is not None and task in self._tasks:
            self._finishing.add(task)
            self._changed.set()

    def replace(self, task: asyncio.Task[Any] | None, work: Coroutine[Any, Any, Any]) -> None:
        """Abandon a task that does not end, and run `work` in its slot."""
        if task in self._tasks:
            self._on_task_done(task)
        self.start(work)

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._finishing.discard(task)
        self._changed.set()
        if not self._tasks:
            self._idle.set()

    def interrupt(self) -> None:
        """End every wait for a free slot, now and from now on."""
        self.interrupted = True
        self._changed.set()

    async def wait_free(self) -> int:
        """Wait for a free slot; returns how many there are, 0 after an interrupt."""
        while self.free <= 0 and not self.interrupted:
            await self.wait_change()
        return max(self.free, 0)

    async def wait_free_urgent(self) -> int:
        """Like `wait_free`, for messages that were read before: readers leave a slot for them."""
        self.urgent += 1
        try:
            return await self.wait_free()
        finally:
            self.urgent -= 1

    async def reserve_free(self, most: int) -> Reservation:
        """Like `wait_free_urgent`, and reserve at most `most` slots in the same step, before
        another task can take them. Reserves none after an interrupt."""
        free = await self.wait_free_urgent()
        return self.reserve(0 if self.interrupted else min(free, most))

    async def wait_change(self) -> None:
        """Wait until more slots may be free than before."""
        self._changed.clear()
        await self._changed.wait()
        # The jobs of one batch end in one tick of the loop: wait for all, then read once.
        await asyncio.sleep(0)

    async def wait_idle(self, timeout_s: float | None) -> bool:
        """Wait until nothing runs; False after the timeout."""
        if not self._tasks:
            return True
        try:
            await asyncio.wait_for(self._wait_idle(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True

    async def _wait_idle(self) -> None:
        while self._tasks:  # a task may be replaced meanwhile
            self._idle.clear()
            await self._idle.wait()

    async def cancel(self) -> None:
        """Cancel the running tasks and wait at most CANCEL_TIMEOUT_S for their end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT_S)
