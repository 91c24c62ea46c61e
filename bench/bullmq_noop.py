"""A no-op handler: what remains is the overhead of taking and finishing a job."""

from __future__ import annotations

from typing import Any

from sluice.worker.execution.context import JobContext
from sluice.worker.registry import Registry

NAME = "noop"


async def noop(context: JobContext, data: Any) -> None: ...


def register(registry: Registry) -> None:
    registry.add_named(NAME, noop)
