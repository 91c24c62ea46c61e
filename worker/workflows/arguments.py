"""What the core job of a step is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from common.contracts.workflow import (
    EXECUTION_ID_PREFIX,
    JOB_ID,
    StepArgument,
)
from common.workflow.types import Running
from worker.errors import InvalidPayload


class StepArguments(NamedTuple):
    """Which execution of which step, and which part of it; None for the whole."""

    running: Running
    part: int | None

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> StepArguments:
        """From a payload's `args`; raises InvalidPayload for what only a stranger writes."""
        job_id, step = args.get(StepArgument.JOB.value), args.get(StepArgument.STEP.value)
        execution, part = args.get(StepArgument.EXECUTION.value), args.get(StepArgument.PART.value)
        if not isinstance(job_id, str) or not JOB_ID.match(job_id):
            raise InvalidPayload(f"{StepArgument.JOB.value} names no workflow job")
        if not isinstance(step, str) or not step:
            raise InvalidPayload(f"{StepArgument.STEP.value} names no step")
        if not isinstance(execution, str) or not execution.startswith(EXECUTION_ID_PREFIX):
            raise InvalidPayload(f"{StepArgument.EXECUTION.value} names no execution")
        if part is not None and (type(part) is not int or part < 0):
            raise InvalidPayload(f"{StepArgument.PART.value} must be a number from 0 on")
        return cls(Running(job_id, step, execution), part)


class UndoArguments(NamedTuple):
    """Which operation of which job is to be undone."""

    job_id: str
    token: str

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> UndoArguments:
        """From a payload's `args`; raises InvalidPayload for what only a stranger writes."""
        job_id, token = args.get(StepArgument.JOB.value), args.get(StepArgument.UNDO_TOKEN.value)
        if not isinstance(job_id, str) or not JOB_ID.match(job_id):
            raise InvalidPayload(f"{StepArgument.JOB.value} names no workflow job")
        if not isinstance(token, str) or not token:
            raise InvalidPayload(f"{StepArgument.UNDO_TOKEN.value} names no operation")
        return cls(job_id, token)
