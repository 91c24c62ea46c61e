"""Handlers that are imported by their first job: a worker carries what its jobs have needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from worker.context import JobContext
from worker.registry import Handler, Registry
from worker.threads import call_in_thread

#: Adds the handler to the registry it is given.
Register = Callable[[Registry], None]


class LateHandler:
    """Stands in for the handler of a task, and has it imported once, however many jobs come."""

    def __init__(self, registry: Registry, task: str, register: Register) -> None:
        self._registry = registry
        self._task = task
        self._register = register
        self._importing: asyncio.Future[Handler] | None = None

    async def __call__(self, context: JobContext, payload: dict[str, Any]) -> Any:
        """Do the job."""
        if self._importing is None:
            # In a thread: other jobs need not stand still while modules are read.
            self._importing = asyncio.ensure_future(call_in_thread(self._import))
            self._importing.add_done_callback(self._imported)
        # A job that is canceled meanwhile does not keep the others from theirs.
        handler = await asyncio.shield(self._importing)
        return await handler.function(context, handler.parse(payload))

    def _import(self) -> Handler:
        # Not into the registry itself: a handler of the user's own may have taken its place there.
        aside = self._registry.aside()
        self._register(aside)
        return aside.resolve(self._task)

    def _imported(self, importing: asyncio.Future[Handler]) -> None:
        if importing.cancelled() or importing.exception() is not None:
            self._importing = None  # the next job tries again


def add_late(registry: Registry, task: str, register: Register) -> None:
    """Let the first job of `task` call `register`, which must add its async handler."""
    registry.add(task, LateHandler(registry, task, register))
