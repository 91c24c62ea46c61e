"""The context that a step function gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from sluice.common import codec
from sluice.common.contracts.models import ModelStep
from sluice.common.contracts.workflow.statuses import WorkflowError
from sluice.common.errors import CorruptKey
from sluice.common.features.workflows.effects import undo_token_for
from sluice.common.features.workflows.reader import WorkflowReader
from sluice.common.features.workflows.records import Item, StepRecord, WorkflowJob
from sluice.common.features.workflows.store import WorkflowStore
from sluice.common.features.workflows.types import StepExecution, WorkflowAnswer
from sluice.worker.execution.concurrency import JobCanceled, run_until_canceled
from sluice.worker.execution.context import JobContext, emit_progress
from sluice.worker.execution.process_pool.errors import OutOfMemory
from sluice.worker.execution.process_pool.pool import ProcessPool
from sluice.worker.features.workflows.arguments import CoreJobIds
from sluice.worker.features.workflows.errors import StepCancelled, StepError, StepLost

T = TypeVar("T")

#: Progress is written after this time, or after this change of the fraction done.
PROGRESS_EVERY_S: Final = 0.25
PROGRESS_EVERY_SHARE: Final = 0.01
#: Limit of the data that a step stores under one name.
MOST_DATA_BYTES: Final = 32 * 1024 * 1024


class StepDependencies(NamedTuple):
    """Dependencies shared by all step contexts."""

    store: WorkflowStore
    reader: WorkflowReader
    pool: ProcessPool
    ids: CoreJobIds


class StepContext:
    """One attempt at one execution of a step, as its function sees it.

    If a worker dies, another attempt starts from the beginning, in any worker. A step stores data
    with `put` and with the value it returns; both are accepted only from the current execution.
    """

    def __init__(
        self,
        job: WorkflowJob,
        running: StepExecution,
        core: JobContext,
        means: StepDependencies,
        options: dict[str, Any],
    ) -> None:
        #: Id of the workflow job, name of the step, and id of the execution.
        self.job_id, self.step, self.execution_id = running[:3]
        #: Name of the workflow.
        self.workflow = job.definition.name
        #: Attempt at this execution, from 1.
        self.attempt = core.attempt
        #: Tenant of the job; '' if it has none.
        self.tenant = job.tenant
        #: RAG namespace that the job builds.
        self.namespace = job.namespace
        #: The client's options for this step, and the metadata of the job.
        self.options = options
        self.metadata: Mapping[str, Any] = job.metadata
        #: The core job: its deadline, events and saved steps.
        self.core = core
        self.running = running
        #: Part of a split step; None for a step that is not split.
        self.part: int | None = None
        self._job = job
        self._deps = means
        self._last_progress_s = 0.0
        self._last_share = 0.0

    @property
    def undo_token(self) -> str:
        """Token to undo the changes of this execution; return it as `StepOutput.undo_token`."""
        return undo_token_for(self.execution_id)

    # -- progress -------------------------------------------------------------------------

    async def progress(self, done: int, total: int) -> None:
        """Report progress. Call it as often as you like; it is throttled.

        Raises StepLost if the execution is no longer current, StepCancelled if the step is to end.
        Do not catch them.
        """
        self.check_cancelled()
        if not self._is_due(done, total):
            return
        if self.part is None:  # a split step counts completed parts
            outcome = await self._deps.store.progress(self.running, done, total)
            if outcome.answer is not WorkflowAnswer.OK:
                raise StepLost
        await emit_progress(self.core, ModelStep.TOOL, done, total)

    def check_cancelled(self) -> None:
        """Raise StepCancelled if cancellation was requested."""
        if self.core.cancel_requested:
            raise StepCancelled

    def _is_due(self, done: int, total: int) -> bool:
        now = time.monotonic()
        share = done / total if total > 0 else 0.0
        if (
            done < total
            and now - self._last_progress_s < PROGRESS_EVERY_S
            and abs(share - self._last_share) < PROGRESS_EVERY_SHARE
        ):
            return False
        self._last_progress_s, self._last_share = now, share
        return True

    # -- data -----------------------------------------------------------------------------

    def step_record(self, step: str) -> StepRecord:
        """State of a step when this attempt began."""
        try:
            return self._job.steps[step]
        except KeyError:
            known = ", ".join(self._job.steps)
            raise ValueError(f"{self.workflow} has no step {step!r}; steps: {known}") from None

    async def items(self, step: str) -> list[Item]:
        """All items of a step as they are now. Their payload is JSON."""
        self.step_record(step)
        return await self._deps.reader.step_items(self.job_id, step)

    async def options_of(self, step: str) -> dict[str, Any]:
        self.step_record(step)
        return parse_options(await self._deps.reader.options(self.job_id, step), self.job_id)

    async def put(self, name: str, value: bytes) -> None:
        """Store data for later steps. Raises StepLost if the execution is no longer current."""
        if len(value) > MOST_DATA_BYTES:
            raise StepError(
                WorkflowError.STEP_FAILED.value,
                f"{name!r} has {len(value)} bytes, {MOST_DATA_BYTES} at most; store it in pieces",
            )
        outcome = await self._deps.store.put(self.running, name, value)
        if outcome.answer is not WorkflowAnswer.OK:
            raise StepLost

    async def get(self, step: str, name: str) -> bytes | None:
        """Data that the current execution of a step stored under a name, or None."""
        execution = self.execution_id if step == self.step else self.step_record(step).execution
        if not execution:
            return None
        return await self._deps.reader.data(self.job_id, execution, name)

    # -- computation ----------------------------------------------------------------------

    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run `function` in a child process, for CPU-bound work.

        It must be a module-level function. Its arguments and its result are made of plain values,
        enums, dataclasses and named tuples; the return annotation must mention the result's
        classes. The process has a memory limit, and is killed if the step is canceled or times out.
        """
        try:
            return await run_until_canceled(self.core, self._deps.pool.run(function, *arguments))
        except JobCanceled:
            raise StepCancelled from None
        except OutOfMemory as error:
            raise StepError(error.kind, str(error)) from None


def parse_options(raw: bytes, job_id: str) -> dict[str, Any]:
    """Parse the stored options of a step. Raises CorruptKey if they are invalid."""
    try:
        value = codec.loads(raw) if raw else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise CorruptKey(f"the options of a step of workflow job {job_id} are not a JSON object")
    return value
