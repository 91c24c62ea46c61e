"""Who does the jobs of BullMQ: by name, with whatever JSON their data is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from common import codec
from worker.bullmq.job import TakenJob
from worker.errors import InvalidPayload, JobError, UnknownTask
from worker.intake import Attempt
from worker.registry import Handler, Registry


class DeferredFailure(JobError):
    """It was decided elsewhere that the job fails: it stalled too often, or a child failed."""

    kind = "deferred_failure"


class BullHandlers:
    """Looks a job's name up: renamed first, then a handler of that name, then a task's."""

    def __init__(
        self,
        registry: Registry,
        names: Mapping[str, str],
        job_of: Callable[[str], TakenJob | None],
    ) -> None:
        self._registry = registry
        self._names = names
        self._job_of = job_of

    def open(self, attempt: Attempt) -> tuple[Handler, Any]:
        """An attempt's handler and its data; raises what keeps it from being run."""
        job = self._job_of(attempt.lease.job_id)
        if job is not None and job.deferred_failure:
            raise DeferredFailure(job.deferred_failure)
        handler = self._registry.by_name(self._names.get(attempt.task, attempt.task))
        if handler is None:
            raise UnknownTask(f"no handler for job name {attempt.task!r}")
        try:
            return handler, codec.loads(attempt.payload)
        except ValueError as error:
            raise InvalidPayload(f"the job's data is no JSON: {error}") from None
