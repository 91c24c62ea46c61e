"""Sluice's job: a handler as users write them, for `python -m worker` by WORKER_HANDLERS."""

from __future__ import annotations

from typing import Any

from common.contracts.jobs import Task
from worker.execution.context import JobContext
from worker.registry import Registry

TASK = Task.CHAT.value


async def echo(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """The job."""
    return payload


def register(registry: Registry) -> None:
    """Called by WORKER_HANDLERS."""
    registry.add(TASK, echo)
