"""Fails a step whose core job has ended without it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from common import codec, logs
from common.contracts.workflow import WorkflowError
from common.errors import SluiceError
from common.workflow.effects import take_back
from common.workflow.store import WorkflowStore
from common.workflow.types import Running, WorkflowAnswer
from worker.context import JobContext
from worker.errors import InvalidPayload
from worker.outcome import Outcome
from worker.workflows.arguments import StepArguments
from worker.workflows.errors import fault, told

log = logging.getLogger(__name__)

CANCELLED = fault(WorkflowError.STEP_CANCELLED.value, "the step's core job was canceled")


class Failing:
    """Tells workflows how the core jobs of their steps ended, where they ended badly."""

    def __init__(self, store: WorkflowStore) -> None:
        self._store = store

    async def ended(
        self, context: JobContext, args: Mapping[str, Any], outcome: Outcome, error: bytes
    ) -> None:
        """The core job of a step, or of a part of one, has ended in error or was canceled."""
        try:
            running = StepArguments.of(args).running
        except InvalidPayload:  # nobody waits for it
            return
        canceled = outcome is Outcome.CANCELED
        await self.fail(running, CANCELLED if canceled else error_in(error), canceled)

    async def fail(self, running: Running, error: Mapping[str, str], canceled: bool) -> bool:
        """End a step badly; whether it did."""
        found = await self._store.fail(running, codec.dumps([error]), canceled)
        if found.answer is not WorkflowAnswer.OK:
            return False
        log.warning(
            "step %s of workflow job %s failed: %s",
            running.step,
            running.job_id,
            "; ".join(error.values()),
            extra=logs.about(running.job_id),
        )
        await take_back_now_or_later(self._store, running.job_id)
        return True


async def take_back_now_or_later(store: WorkflowStore, job_id: str) -> None:
    """What steps did beyond their workflow, and did not bring to its end."""
    try:
        await take_back(store, job_id)
    except SluiceError as error:  # the reconciler comes back to it
        log.warning("effects of workflow job %s are taken back later: %s", job_id, error)


def error_in(raw: bytes) -> dict[str, str]:
    """The stored error of a core job as a workflow's `errors` has it."""
    try:
        stored = codec.loads(raw)
    except ValueError:
        stored = None
    return told(stored if isinstance(stored, dict) else {})
