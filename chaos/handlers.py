"""Handlers of the workers in a run: they follow the job's script and log their runs.

There are two handlers: an async one, and a plain one that runs in a thread. Each event contains its
attempt and its number in the attempt, so that the checks can find wrong or missing events.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final, Literal

from pydantic import BaseModel

from chaos.orders import DOOMED_KIND, PLAIN
from chaos.run_log import DIRECTORY_VARIABLE, RunLog
from sluice.common.contracts.jobs import Task
from sluice.worker.errors import JobError, TransientError
from sluice.worker.execution.context import JobContext, ThreadJobContext
from sluice.worker.registry import Registry

PROGRESS = "progress"
#: A thread runs this long past its deadline, so that the worker has certainly noticed the timeout.
LATE_S: Final = 0.5


class Script(BaseModel):
    """What a job's handler does."""

    events: int = 0
    #: Pause before each event, and once before the end.
    pause_ms: int = 0
    #: How long the handler blocks the CPU, and the event loop if it is async.
    hold_ms: int = 0
    #: Number of first attempts that fail with a transient error.
    failures: int = 0
    #: The outcome otherwise.
    fate: Literal["done", "doomed", "broken"] = "done"
    #: True if the handler stops when it is cancel_request to cancel.
    cooperative: bool = False


class Doomed(JobError):
    """A permanent error."""

    kind = DOOMED_KIND


def register(registry: Registry) -> None:
    run_log = RunLog(os.environ[DIRECTORY_VARIABLE], os.environ["CONSUMER"])

    async def handle(context: JobContext, script: Script) -> dict[str, int]:
        with run_log.run(context.job_id, context.attempt, context.task):
            for number in range(1, script.events + 1):
                await _pause(context, script)
                await context.emit(PROGRESS, _progress(context.attempt, number))
            await _pause(context, script)
            _hold(script)
            return _end(context.attempt, script)

    def handle_in_thread(context: ThreadJobContext, script: Script) -> dict[str, int]:
        with run_log.run(context.job_id, context.attempt, context.task):
            for number in range(1, script.events + 1):
                _pause_in_thread(context, script)
                context.emit(PROGRESS, _progress(context.attempt, number))
            _pause_in_thread(context, script)
            _hold(script)
            return _end(context.attempt, script)

    for task in Task:
        registry.add(task.value, handle_in_thread if task is PLAIN else handle)


def _progress(attempt: int, number: int) -> dict[str, int]:
    return {"attempt": attempt, "number": number}


async def _pause(context: JobContext, script: Script) -> None:
    if script.cooperative:
        cancel_request = asyncio.ensure_future(context.wait_for_cancel())
        try:
            await asyncio.wait({cancel_request}, timeout=script.pause_ms / 1000)
        finally:
            cancel_request.cancel()
    else:
        await asyncio.sleep(script.pause_ms / 1000)


def _pause_in_thread(context: ThreadJobContext, script: Script) -> None:
    """A thread cannot be stopped from outside, so it polls for a cancel request."""
    until = time.monotonic() + script.pause_ms / 1000
    while (left_s := until - time.monotonic()) > 0:
        budget_s = context.remaining_s
        if context.cancel_requested or (budget_s is not None and budget_s <= -LATE_S):
            return
        time.sleep(min(left_s, 0.05))


def _hold(script: Script) -> None:
    until = time.monotonic() + script.hold_ms / 1000
    while time.monotonic() < until:
        sum(range(1000))


def _end(attempt: int, script: Script) -> dict[str, int]:
    if attempt <= script.failures:
        raise TransientError(f"attempt {attempt} fails by script")
    if script.fate == "doomed":
        raise Doomed("fails by script")
    if script.fate == "broken":
        raise RuntimeError("fails by script")
    return {"attempt": attempt, "events": script.events}
