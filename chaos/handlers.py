"""What the workers of a run do: as each job's script says, and it is all written down.

Two handlers, one async and one plain, which runs in a thread. Each event says which attempt wrote
it, and its number there, so that the oracle can tell whose it is and whether one is missing.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final, Literal

from pydantic import BaseModel

from chaos.diary import DIRECTORY_VARIABLE, Diary
from chaos.orders import DOOMED_KIND, PLAIN
from common.contracts.jobs import Task
from worker.errors import JobError, TransientError
from worker.execution.context import JobContext, ThreadJobContext
from worker.registry import Registry

PROGRESS = "progress"
#: So long after its time is up a thread gives in: by then its worker has surely noticed, and it is
#: not taken for one that was in time.
LATE_S: Final = 0.5


class Script(BaseModel):
    """What a job goes through."""

    events: int = 0
    #: Before each event, and once before the end.
    pause_ms: int = 0
    #: So long the handler keeps the CPU, and the loop if it is async, without giving way.
    hold_ms: int = 0
    #: The first so many attempts fail with an error that may pass.
    failures: int = 0
    #: How it ends otherwise.
    fate: Literal["done", "doomed", "broken"] = "done"
    #: Whether it stops by itself when asked.
    cooperative: bool = False


class Doomed(JobError):
    """Nothing can be done about it."""

    kind = DOOMED_KIND


def register(registry: Registry) -> None:
    """Called once at start."""
    diary = Diary(os.environ[DIRECTORY_VARIABLE], os.environ["CONSUMER"])

    async def act(context: JobContext, script: Script) -> dict[str, int]:
        with diary.stint(context.job_id, context.attempt, context.task):
            for number in range(1, script.events + 1):
                await _pause(context, script)
                await context.emit(PROGRESS, _progress(context.attempt, number))
            await _pause(context, script)
            _hold(script)
            return _end(context.attempt, script)

    def act_plainly(context: ThreadJobContext, script: Script) -> dict[str, int]:
        with diary.stint(context.job_id, context.attempt, context.task):
            for number in range(1, script.events + 1):
                _pause_plainly(context, script)
                context.emit(PROGRESS, _progress(context.attempt, number))
            _pause_plainly(context, script)
            _hold(script)
            return _end(context.attempt, script)

    for task in Task:
        registry.add(task.value, act_plainly if task is PLAIN else act)


def _progress(attempt: int, number: int) -> dict[str, int]:
    return {"attempt": attempt, "number": number}


async def _pause(context: JobContext, script: Script) -> None:
    if script.cooperative:
        asked = asyncio.ensure_future(context.wait_for_cancel())
        try:
            await asyncio.wait({asked}, timeout=script.pause_ms / 1000)
        finally:
            asked.cancel()
    else:
        await asyncio.sleep(script.pause_ms / 1000)


def _pause_plainly(context: ThreadJobContext, script: Script) -> None:
    """A thread cannot be stopped from outside, so it looks whether it should."""
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
        raise TransientError(f"attempt {attempt} was to fail")
    if script.fate == "doomed":
        raise Doomed("as it was to be")
    if script.fate == "broken":
        raise RuntimeError("as it was to be")
    return {"attempt": attempt, "events": script.events}
