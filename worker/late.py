"""Handlers that are imported by their first job: a worker carries what its jobs have needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worker.context import JobContext
from worker.registry import Registry
from worker.threads import call_in_thread


class LateHandler:
    """Stands in for the handler of a task, until its first job puts that in its place."""

    def __init__(self, registry: Registry, task: str, register: Callable[[], None]) -> None:
        self._registry = registry
        self._task = task
        self._register = register

    async def __call__(self, context: JobContext, payload: dict[str, Any]) -> Any:
        """The first job, and those that came while it was on its way."""
        # In a thread: other jobs need not stand still while modules are read.
        await call_in_thread(self._register)
        handler = self._registry.resolve(self._task)
        return await handler.function(context, handler.parse(payload))


def add_late(registry: Registry, task: str, register: Callable[[], None]) -> None:
    """Let the first job of `task` call `register`, which must add its async handler."""
    registry.add(task, LateHandler(registry, task, register))
