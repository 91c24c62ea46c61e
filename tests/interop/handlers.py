"""Handlers of Sluice's worker; the counterpart of `KINDS` in `tests/node/driver.mjs`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from sluice.worker.errors import JobError, TransientError
from sluice.worker.execution.context import JobContext
from sluice.worker.registry import Registry


async def echo(context: JobContext, data: Any) -> Any:
    return data


async def video(context: JobContext, data: Any) -> Any:
    for percent in (25, 50, 75, 100):
        await context.progress(percent, f"harness {percent // 25}")
    return {"videoUrl": f"https://example.com/{data['videoId']}"}


async def transient(context: JobContext, data: Any) -> Any:
    if context.attempt <= data["failures"]:
        raise TransientError(f"not yet: {context.attempt}")
    return {"attempts": context.attempt}


async def permanent(context: JobContext, data: Any) -> Any:
    raise JobError("never")


async def children(context: JobContext, data: Any) -> Any:
    return list((await context.children()).values())


async def slow(context: JobContext, data: Any) -> Any:
    _mark(data, "began")
    await asyncio.sleep(data.get("ms", 20) / 1000)
    _mark(data, "ended")
    return context.job_id


async def held(context: JobContext, data: Any) -> Any:
    _mark(data, "began")
    while not os.path.exists(data["gate"]):
        await asyncio.sleep(0.02)
    _mark(data, "ended")
    return context.job_id


def _mark(data: Any, event: str) -> None:
    """Appends a line with the process id to a file."""
    if "mark" in data:
        with Path(data["mark"]).open("a") as file:
            file.write(f"{event} {os.getpid()}\n")


def register(registry: Registry) -> None:
    for function in (echo, transient, permanent, children, slow, held):
        registry.add_named(function.__name__, function)
    registry.add_named("video-generation", video)
