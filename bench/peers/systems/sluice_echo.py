"""Sluice's job: a handler as users write it, loaded by WORKER_HANDLERS."""

from __future__ import annotations

from typing import Any

from sluice.common.contracts.jobs import Task
from sluice.worker.execution.context import JobContext
from sluice.worker.registry import Registry

TASK = Task.CHAT.value


async def echo(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    return payload


def register(registry: Registry) -> None:
    registry.add(TASK, echo)
