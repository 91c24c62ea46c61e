"""The echo handler of the contract: returns its payload."""

from __future__ import annotations

import asyncio
from typing import Any

from sluice.common.contracts.jobs import EventType, Step, Task
from sluice.worker.execution.context import JobContext
from sluice.worker.registry import Registry

_MESSAGE, _STEP = EventType.MESSAGE, Step.WORKER_ECHO


def register(registry: Registry, delay_ms: int = 0) -> None:
    """Register the echo for every task of the contract, with a delay of `delay_ms`."""

    async def echo(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        text = f"echo(task={context.task}): {payload}"
        await context.emit(_MESSAGE, {"text": text}, step=_STEP)
        return {"text": text, "ms": context.elapsed_ms}

    for task in Task:
        registry.add(task.value, echo)
