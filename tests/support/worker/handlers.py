"""Handlers for the worker's tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Container
from typing import Any

from sluice.common.contracts.jobs import TASKS


class Gate:
    """A handler that records its jobs, and holds those of some tasks while it is closed."""

    def __init__(
        self, seconds: float = 0.0, *, closed: bool = False, held: Container[str] = TASKS
    ) -> None:
        self.seconds = seconds
        self.held = held
        #: Job ids in the order in which they began.
        self.begun: list[str] = []
        self.attempts: Counter[str] = Counter()
        self.started: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        #: The highest number of jobs at the same time, by task and of all tasks.
        self.most_by_task: Counter[str] = Counter()
        self.most = 0
        self.open = asyncio.Event()
        if not closed:
            self.open.set()

    @property
    def now(self) -> int:
        """How many jobs run."""
        return sum(self.running.values())

    async def __call__(self, context: Any, payload: Any) -> int:
        task = context.task
        self.begun.append(context.job_id)
        self.attempts[context.job_id] += 1
        self.started[task] += 1
        self.running[task] += 1
        self.most_by_task[task] = max(self.most_by_task[task], self.running[task])
        self.most = max(self.most, self.now)
        try:
            if task in self.held:
                await self.open.wait()
            await asyncio.sleep(self.seconds)
        finally:
            self.running[task] -= 1
        return int(context.attempt)


class Stubborn:
    """An async handler that swallows every cancellation until it is released."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.begun: list[str] = []
        self.ended = 0
        #: What happened to the events that it emitted after its release.
        self.late: list[BaseException | None] = []

    async def __call__(self, context: Any, payload: Any) -> Any:
        if payload.get("fine"):
            return {"fine": True}
        await context.emit("partial", {"n": 1})
        self.begun.append(context.job_id)
        while not self.released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.released.wait()
        try:
            await context.emit("late", {})
            await asyncio.sleep(0)
            await context.emit("later", {})
            self.late.append(None)
        except Exception as error:
            self.late.append(error)
        self.ended += 1
        return {"late": True}


async def forever(context: Any, payload: Any) -> None:
    await asyncio.Event().wait()
