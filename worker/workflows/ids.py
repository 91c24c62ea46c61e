"""Fresh names for executions of steps and their core jobs."""

from __future__ import annotations

import os
import uuid

from common.contracts.access import TAIL_DIGITS
from common.contracts.workflow import EXECUTION_ID_PREFIX
from common.partitions import HOME, Partitions
from common.workflow.types import Ids


class CoreIds:
    """Draws them: core jobs of workflows belong to the partition where the workflows are."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def of_step(self, of_job: str) -> Ids:
        """For a step that may be started: as a job of the same owner as that core job."""
        return self._of_step(self.core_job(of_job))

    def of_step_with_tail(self, tail: str) -> Ids:
        """The same, where the owner is known by how its jobs end; '' for nobody."""
        return self._of_step(self._with_tail(tail))

    def core_job(self, of_job: str) -> str:
        """A core job id that ends like the other one, which is how a tenant knows its own."""
        return self._with_tail(of_job[-TAIL_DIGITS:] if _is_uuid(of_job) else "")

    def _of_step(self, core_job: str) -> Ids:
        return Ids(EXECUTION_ID_PREFIX + os.urandom(4).hex(), core_job)

    def _with_tail(self, tail: str) -> str:
        return self._partitions.fitting(HOME, lambda: _new_id(tail))


def _new_id(tail: str) -> str:
    job_id = str(uuid.uuid4())
    return job_id[: -len(tail)] + tail if tail else job_id


def _is_uuid(job_id: str) -> bool:
    try:
        return str(uuid.UUID(job_id)) == job_id
    except ValueError:
        return False
