"""Fails a step when its core job ends without success."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from sluice.common import codec
from sluice.common.contracts.workflow.statuses import STEP_TOOL, UNDO_TOOL, WorkflowError
from sluice.common.errors import SluiceError
from sluice.common.features.workflows.effects import revert_effects
from sluice.common.features.workflows.store import WorkflowStore
from sluice.common.features.workflows.types import StepExecution, WorkflowAnswer
from sluice.common.observability import logs
from sluice.worker.errors import InvalidPayload
from sluice.worker.execution.context import JobContext
from sluice.worker.execution.outcome import Outcome
from sluice.worker.features.workflows.arguments import StepArguments
from sluice.worker.features.workflows.errors import StepError, error_entry, step_error_entry
from sluice.worker.registry import Registry, Service, WorkerServices

log = logging.getLogger(__name__)

STEP_CANCELLED = error_entry(WorkflowError.STEP_CANCELLED.value, "the step's core job was canceled")


class StepFailureReporter:
    """Fails steps whose core jobs ended in error or were canceled."""

    def __init__(self, store: WorkflowStore) -> None:
        self._store = store

    async def ended(
        self, context: JobContext, args: Mapping[str, Any], outcome: Outcome, error: bytes
    ) -> None:
        """Called when the core job of a step, or of a part of one, has ended in error or was
        canceled.
        """
        try:
            running = StepArguments.of(args).running
        except InvalidPayload:  # no step to fail
            return
        canceled = outcome is Outcome.CANCELED
        await self.fail(running, STEP_CANCELLED if canceled else parse_job_error(error), canceled)

    async def fail(self, running: StepExecution, error: Mapping[str, str], canceled: bool) -> bool:
        """Fail a step; returns False if it had already ended."""
        found = await self._store.fail(running, codec.dumps([error]), canceled)
        if found.answer is not WorkflowAnswer.OK:
            return False
        log.warning(
            "step %s of workflow job %s failed: %s",
            running.step,
            running.job_id,
            "; ".join(error.values()),
            extra=logs.job_extra(running.job_id),
        )
        await revert_effects_or_defer(self._store, running.job_id)
        return True


async def revert_effects_or_defer(store: WorkflowStore, job_id: str) -> None:
    """Revert effects of failed steps; an error leaves them to the reconciler."""
    try:
        await revert_effects(store, job_id)
    except SluiceError as error:  # the reconciler repeats it
        log.warning("workflow job %s: reverting effects failed, retrying later: %s", job_id, error)


def parse_job_error(raw: bytes) -> dict[str, str]:
    """The stored error of a core job as an entry of a workflow's `errors`."""
    try:
        stored = codec.loads(raw)
    except ValueError:
        stored = None
    return step_error_entry(stored if isinstance(stored, dict) else {})


_ECHO_WORKER: Final = (
    "an echo worker cannot run workflow steps; run `python -m sluice.worker` instead "
    '(`make run ARGS="--worker real"`), then execute the step again'
)


class StepRejectionService(Service):
    """Rejects steps on an echo worker, so that clients get the reason at once."""

    async def start(self, services: WorkerServices) -> None:
        self._failure_reporter = StepFailureReporter(services.workflows)

    async def reject(self, context: JobContext, args: dict[str, Any]) -> NoReturn:
        raise StepError(WorkflowError.STEP_FAILED.value, _ECHO_WORKER)

    async def ended(
        self, context: JobContext, args: Mapping[str, Any], outcome: Outcome, error: bytes
    ) -> None:
        """Called when the core job has ended; fails the step."""
        await self._failure_reporter.ended(context, args, outcome, error)


def register(registry: Registry) -> None:
    """Reject the internal jobs of workflows."""
    rejection = StepRejectionService()
    registry.add_service(rejection)
    registry.add_internal(STEP_TOOL, rejection.reject, rejection.ended)
    registry.add_internal(UNDO_TOOL, rejection.reject)
