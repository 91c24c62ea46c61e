"""Who is running: never more than the limit, and someone to wait for a free place."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

#: How long canceled work may take to clean up.
CANCEL_TIMEOUT_S = 5.0


class Reservation:
    """Places held for work that is on its way, until `end`; or until they lapse, where others would
    go without them for a server that does not answer."""

    __slots__ = ("_slots", "_timer", "count", "expired")

    def __init__(self, slots: Slots, count: int) -> None:
        self._slots = slots
        self.count = count
        #: Whether somebody else may have the places by now.
        self.expired = False
        self._timer: asyncio.TimerHandle | None = None
        slots.add_reserved(count)
        if slots.reservation_ttl_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(slots.reservation_ttl_s, self._expire)

    def release(self) -> None:
        """Give them back, if that was not done yet."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.expired:
            self.expired = True
            self._slots.remove_reserved(self.count)

    def _expire(self) -> None:
        self.release()


class Slots:
    """A bounded set of tasks."""

    def __init__(self, limit: int, reservation_ttl_s: float | None = None) -> None:
        self.limit = limit
        #: Seconds after which a reservation expires. None for never: a single queue's reservations
        #: all wait for the same server.
        self.reservation_ttl_s = reservation_ttl_s
        self._tasks: set[asyncio.Task[Any]] = set()
        self._finishing: set[asyncio.Task[Any]] = set()
        self._reserved = 0
        #: How many have messages in hand and only want a place: they come before those who read.
        self.urgent = 0
        #: Why nothing may start.
        self._suspended_by: set[str] = set()
        self.interrupted = False
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()

    @property
    def free(self) -> int:
        """How many more may start. Of those who leave, no more are waited out than may run."""
        if self._suspended_by:
            return 0
        leaving = min(len(self._finishing), self.limit)
        return self.limit - (len(self._tasks) - leaving) - self._reserved

    @property
    def busy(self) -> int:
        return len(self._tasks)

    @property
    def suspended(self) -> bool:
        """Whether nothing may start, however few are running."""
        return bool(self._suspended_by)

    def add_reserved(self, count: int) -> None:
        """Hold places for work that is on its way."""
        self._reserved += count

    def remove_reserved(self, count: int) -> None:
        self._reserved -= count
        self._changed.set()

    def reserve(self, count: int) -> Reservation:
        """The same, to be ended by whoever did it."""
        return Reservation(self, count)

    def suspend(self, why: str) -> None:
        """Have no free place while this holds, however few are running."""
        self._suspended_by.add(why)

    def resume(self, why: str) -> None:
        """This holds no longer; have free places again, unless something else does."""
        self._suspended_by.discard(why)
        self._changed.set()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` in a place; the caller has made sure that one is free."""
        task = asyncio.get_running_loop().create_task(work, name="job")
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def mark_finishing(self, task: asyncio.Task[Any] | None) -> None:
        """A task's work is done, it only has to say so: its place is free.

        The next read leaves together with the report. Whatever is begun then is begun after the
        report, on the same connection, so that no more jobs than places are running in Redis
        either, unless reports have to be repeated, or are too many for one call.
        """
        if task is not None and task in self._tasks:
            self._finishing.add(task)
            self._changed.set()

    def replace(self, task: asyncio.Task[Any] | None, work: Coroutine[Any, Any, Any]) -> None:
        """Give up on a task that will not end, and run `work` in its place."""
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
        """Let nobody wait for a free place any more."""
        self.interrupted = True
        self._changed.set()

    async def wait_free(self) -> int:
        """Wait for a free place; returns how many there are, 0 after an interrupt."""
        while self.free <= 0 and not self.interrupted:
            await self.wait_change()
        return max(self.free, 0)

    async def wait_free_urgent(self) -> int:
        """The same, for messages that are in hand: readers leave a place for them."""
        self.urgent += 1
        try:
            return await self.wait_free()
        finally:
            self.urgent -= 1

    async def reserve_free(self, most: int) -> Reservation:
        """The same, and hold them in the step that finds them; none after an interrupt."""
        free = await self.wait_free_urgent()
        return self.reserve(0 if self.interrupted else min(free, most))

    async def wait_change(self) -> None:
        """Wait until there may be more places than before."""
        self._changed.clear()
        await self._changed.wait()
        # Jobs of one batch end in one tick: let them all, and read once for all of them.
        await asyncio.sleep(0)

    async def wait_idle(self, timeout_s: float | None) -> bool:
        """Wait until nothing runs; False when the time is up first."""
        if not self._tasks:
            return True
        try:
            await asyncio.wait_for(self._wait_idle(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True

    async def _wait_idle(self) -> None:
        while self._tasks:  # not a fixed set of them: one may be replaced meanwhile
            self._idle.clear()
            await self._idle.wait()

    async def cancel(self) -> None:
        """Cancel what runs and wait until it has ended, unless it will not hear of it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT_S)
