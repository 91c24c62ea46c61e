"""What a step is given: its job, what earlier steps left, and a way to say how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from common import codec
from common.contracts.models import ModelStep
from common.contracts.workflow.statuses import WorkflowError
from common.errors import CorruptKey
from common.features.workflows.effects import undo_token_for
from common.features.workflows.reader import WorkflowReader
from common.features.workflows.records import Item, StepRecord, WorkflowJob
from common.features.workflows.store import WorkflowStore
from common.features.workflows.types import StepExecution, WorkflowAnswer
from worker.execution.concurrency import JobCanceled, run_until_canceled
from worker.execution.context import JobContext, emit_progress
from worker.execution.process_pool.errors import OutOfMemory
from worker.execution.process_pool.pool import ProcessPool
from worker.features.workflows.arguments import CoreJobIds
from worker.features.workflows.errors import StepCancelled, StepError, StepLost

T = TypeVar("T")

#: Progress is told when so much time has passed, or so much more of the whole is done.
PROGRESS_EVERY_S: Final = 0.25
PROGRESS_EVERY_SHARE: Final = 0.01
#: Bytes that a step may leave under one name.
MOST_DATA_BYTES: Final = 32 * 1024 * 1024


class StepDependencies(NamedTuple):
    """What the contexts of all steps share."""

    store: WorkflowStore
    reader: WorkflowReader
    pool: ProcessPool
    ids: CoreJobIds


class StepContext:
    """One attempt of one execution of a step, as its function sees it.

    A worker may die in the middle of it; another attempt then begins from the start, in any worker.
    What a step leaves in Redis it leaves by `put` and by what it returns: both are taken only
    from the execution that counts.
    """

    def __init__(
        self,
        job: WorkflowJob,
        running: StepExecution,
        core: JobContext,
        means: StepDependencies,
        options: dict[str, Any],
    ) -> None:
        #: The workflow job's id, the step's name, and the execution's.
        self.job_id, self.step, self.execution_id = running[:3]
        #: The workflow's name.
        self.workflow = job.definition.name
        #: Which attempt of this execution it is, from 1 on.
        self.attempt = core.attempt
        #: Whose job it is, '' for nobody's.
        self.tenant = job.tenant
        #: The rag namespace that the job builds.
        self.namespace = job.namespace
        #: What the client wants of this step, and what it noted at the job.
        self.options = options
        self.metadata: Mapping[str, Any] = job.metadata
        #: The core job behind it: its deadline, its events, its saved steps.
        self.core = core
        self.running = running
        #: Which part of a step that was split; None for one that was not.
        self.part: int | None = None
        self._job = job
        self._deps = means
        self._last_progress_s = 0.0
        self._last_share = 0.0

    @property
    def undo_token(self) -> str:
        """The token under which what it changes may be undone: for `StepOutput.undo_token`."""
        return undo_token_for(self.execution_id)

    # -- how far it is ---------------------------------------------------------------------

    async def progress(self, done: int, total: int) -> None:
        """So much of so much is done. Call it as often as you like; some of it is passed on.

        Raises StepLost when the execution no longer counts, StepCancelled when it is to end: let
        them pass.
        """
        self.check_cancelled()
        if not self._is_due(done, total):
            return
        if self.part is None:  # parts count as they end
            outcome = await self._deps.store.progress(self.running, done, total)
            if outcome.answer is not WorkflowAnswer.OK:
                raise StepLost
        await emit_progress(self.core, ModelStep.TOOL, done, total)

    def check_cancelled(self) -> None:
        """Raise StepCancelled where somebody wants the step to end."""
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

    # -- what there is ---------------------------------------------------------------------

    def step_record(self, step: str) -> StepRecord:
        """Where a step stood when this attempt began."""
        try:
            return self._job.steps[step]
        except KeyError:
            known = ", ".join(self._job.steps)
            raise ValueError(f"{self.workflow} has no step {step!r}; there are {known}") from None

    async def items(self, step: str) -> list[Item]:
        """All items of a step, as they are now. Their payload is JSON."""
        self.step_record(step)
        return await self._deps.reader.step_items(self.job_id, step)

    async def options_of(self, step: str) -> dict[str, Any]:
        self.step_record(step)
        return parse_options(await self._deps.reader.options(self.job_id, step), self.job_id)

    async def put(self, name: str, value: bytes) -> None:
        """Leave something for later steps; raises StepLost when the execution no longer counts."""
        if len(value) > MOST_DATA_BYTES:
            raise StepError(
                WorkflowError.STEP_FAILED.value,
                f"{name!r} has {len(value)} bytes, {MOST_DATA_BYTES} at most; leave it in pieces",
            )
        outcome = await self._deps.store.put(self.running, name, value)
        if outcome.answer is not WorkflowAnswer.OK:
            raise StepLost

    async def get(self, step: str, name: str) -> bytes | None:
        """What a step left under a name in the execution that counts; None for nothing."""
        execution = self.execution_id if step == self.step else self.step_record(step).execution
        if not execution:
            return None
        return await self._deps.reader.data(self.job_id, execution, name)

    # -- hard work -------------------------------------------------------------------------

    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        """What `function` returns, from another process: for work that takes the processor.

        It must be a module's own function; its arguments and what it returns must be picklable.
        The process is killed when the step is canceled or its time is up, and has a bound of
        memory.
        """
        try:
            return await run_until_canceled(self.core, self._deps.pool.run(function, *arguments))
        except JobCanceled:
            raise StepCancelled from None
        except OutOfMemory as error:
            raise StepError(error.kind, str(error)) from None


def parse_options(raw: bytes, job_id: str) -> dict[str, Any]:
    """Stored options of a step; raises CorruptKey for what are none."""
    try:
        value = codec.loads(raw) if raw else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise CorruptKey(f"the options of a step of workflow job {job_id} are no JSON object")
    return value
