"""Arguments of the internal jobs of workflows, and their ids."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from sluice.common.contracts.access import TAIL_DIGITS
from sluice.common.contracts.workflow.fields import StepArgumentField
from sluice.common.contracts.workflow.statuses import EXECUTION_ID_PREFIX, WORKFLOW_JOB_ID_PATTERN
from sluice.common.features.workflows.types import StepExecution, StepIds
from sluice.common.redis.partitions import HOME_PARTITION, Partitions
from sluice.worker.errors import InvalidPayload


class StepArguments(NamedTuple):
    """The execution of a step, and the part of it; None for a step that is not split."""

    running: StepExecution
    part: int | None

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> StepArguments:
        """Parse a payload's `args`. Raises InvalidPayload."""
        job_id, step = args.get(StepArgumentField.JOB), args.get(StepArgumentField.STEP)
        execution, part = args.get(StepArgumentField.EXECUTION), args.get(StepArgumentField.PART)
        if not isinstance(job_id, str) or not WORKFLOW_JOB_ID_PATTERN.match(job_id):
            raise InvalidPayload(f"{StepArgumentField.JOB} is not the id of a workflow job")
        if not isinstance(step, str) or not step:
            raise InvalidPayload(f"{StepArgumentField.STEP} is not the name of a step")
        if not isinstance(execution, str) or not execution.startswith(EXECUTION_ID_PREFIX):
            raise InvalidPayload(f"{StepArgumentField.EXECUTION} is not the id of an execution")
        if part is not None and (type(part) is not int or part < 0):
            raise InvalidPayload(f"{StepArgumentField.PART} must be an integer of at least 0")
        return cls(StepExecution(job_id, step, execution), part)


class UndoArguments(NamedTuple):
    """The operation to undo, and its job."""

    job_id: str
    token: str

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> UndoArguments:
        """Parse a payload's `args`. Raises InvalidPayload."""
        job_id, token = args.get(StepArgumentField.JOB), args.get(StepArgumentField.UNDO_TOKEN)
        if not isinstance(job_id, str) or not WORKFLOW_JOB_ID_PATTERN.match(job_id):
            raise InvalidPayload(f"{StepArgumentField.JOB} is not the id of a workflow job")
        if not isinstance(token, str) or not token:
            raise InvalidPayload(f"{StepArgumentField.UNDO_TOKEN} is not an undo token")
        return cls(job_id, token)


class CoreJobIds:
    """Generates ids of core jobs, in the partition that holds the workflows."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def for_step(self, of_job: str) -> StepIds:
        """Ids for a step, with the owner of core job `of_job`."""
        return self._ids_for(self.core_job(of_job))

    def for_tail(self, tail: str) -> StepIds:
        """Ids for a step, with the owner given by the tail of its job ids; '' for no owner."""
        return self._ids_for(self._with_tail(tail))

    def core_job(self, of_job: str) -> str:
        """A core job id with the same tail, which identifies the tenant."""
        return self._with_tail(of_job[-TAIL_DIGITS:] if _is_uuid(of_job) else "")

    def _ids_for(self, core_job: str) -> StepIds:
        return StepIds(EXECUTION_ID_PREFIX + os.urandom(4).hex(), core_job)

    def _with_tail(self, tail: str) -> str:
        return self._partitions.draw_id(HOME_PARTITION, lambda: _new_id(tail))


def _new_id(tail: str) -> str:
    job_id = str(uuid.uuid4())
    return job_id[: -len(tail)] + tail if tail else job_id


def _is_uuid(job_id: str) -> bool:
    try:
        return str(uuid.UUID(job_id)) == job_id
    except ValueError:
        return False
