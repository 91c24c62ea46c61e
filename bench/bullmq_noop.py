"""A handler that does nothing: what is left is the price of taking a job and of ending it."""

from __future__ import annotations

from typing import Any

from worker.execution.context import JobContext
from worker.registry import Registry

NAME = "noop"


async def noop(context: JobContext, data: Any) -> None:
    """Nothing."""


def register(registry: Registry) -> None:
    """Called by WORKER_HANDLERS."""
    registry.add_named(NAME, noop)
