"""Who is running: never more than the limit, and someone to wait for a free place."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

#: How long canceled work may take to clean up.
CANCEL_TIMEOUT_S = 5.0


class Slots:
    """A bounded set of tasks."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tasks: set[asyncio.Task[Any]] = set()
        self._leaving: set[asyncio.Task[Any]] = set()
        self._reserved = 0
        self._held = False
        self.interrupted = False
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()

    @property
    def free(self) -> int:
        """How many more may start. Of those who leave, no more are waited out than may run."""
        if self._held:
            return 0
        leaving = min(len(self._leaving), self._limit)
        return self._limit - (len(self._tasks) - leaving) - self._reserved

    @property
    def busy(self) -> int:
        """How many are running."""
        return len(self._tasks)

    def reserve(self, count: int) -> None:
        """Hold places for work that is on its way."""
        self._reserved += count

    def release(self, count: int) -> None:
        """Give reserved places back."""
        self._reserved -= count
        self._changed.set()

    def hold(self) -> None:
        """Have no free place until told otherwise, however few are running."""
        self._held = True

    def resume(self) -> None:
        """Have free places again."""
        self._held = False
        self._changed.set()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` in a place; the caller has made sure that one is free."""
        task = asyncio.get_running_loop().create_task(work, name="job")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def leave(self) -> None:
        """The calling task's work is done, it only has to say so: its place is free.

        The next read leaves together with the report. Whatever is begun then is begun after the
        report, on the same connection, so that no more jobs than places are running in Redis
        either, unless a report has to be repeated.
        """
        task = asyncio.current_task()
        if task in self._tasks:
            self._leaving.add(task)
            self._changed.set()

    def replace(self, task: asyncio.Task[Any] | None, work: Coroutine[Any, Any, Any]) -> None:
        """Give up on a task that will not end, and run `work` in its place."""
        if task in self._tasks:
            self._ended(task)
        self.start(work)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._leaving.discard(task)
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
            self._changed.clear()
            await self._changed.wait()
            # Jobs of one batch end in one tick: let them all, and read once for all of them.
            await asyncio.sleep(0)
        return max(self.free, 0)

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
