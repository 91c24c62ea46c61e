"""The internal tools `workflow.step` (one attempt at a step) and `workflow.undo`."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from redis.asyncio import Redis

from sluice.common.aio import cancel
from sluice.common.contracts.rag import RagKeys
from sluice.common.contracts.workflow.fields import (
    StepArgumentField,
    StepResultField,
    UndoResultField,
)
from sluice.common.contracts.workflow.operations import WorkflowFact
from sluice.common.contracts.workflow.statuses import StepStatus, WorkflowError
from sluice.common.features.rag.documents import DocumentRecord
from sluice.common.features.workflows.effects import EffectStore
from sluice.common.features.workflows.records import WorkflowJob
from sluice.common.features.workflows.store import WorkflowStore
from sluice.common.features.workflows.types import StepExecution, StepResult, WorkflowAnswer
from sluice.worker.execution.context import JobContext
from sluice.worker.features.rag.service import RagService
from sluice.worker.features.workflows.arguments import StepArguments, UndoArguments
from sluice.worker.features.workflows.context import StepContext, StepDependencies, parse_options
from sluice.worker.features.workflows.errors import StepCancelled, StepError, StepLost
from sluice.worker.features.workflows.job_failure import revert_effects_or_defer
from sluice.worker.features.workflows.output import StepOutput, step_result
from sluice.worker.features.workflows.registry import Step, Workflows
from sluice.worker.features.workflows.split_steps import SplitStep, SplitStepRunner

log = logging.getLogger(__name__)

_RESULT_SUPERSEDED: Final = {StepResultField.SUPERSEDED: True}


class StepRunner:
    """Runs steps, any number at once."""

    def __init__(
        self, workflows: Workflows, deps: StepDependencies, client: Redis, core_ttl_s: int
    ) -> None:
        self._workflows = workflows
        self._deps = deps
        self._core_ttl_s = core_ttl_s
        self._split_runner = SplitStepRunner(client, deps.store, deps.ids, core_ttl_s)
        self._running_tasks: dict[asyncio.Task[Any], StepExecution] = {}
        #: Tasks canceled by `drop_superseded`.
        self._dropped: set[asyncio.Task[Any]] = set()

    async def step(self, core: JobContext, args: dict[str, Any]) -> dict[str, Any] | None:
        """Run a step to its end; returns the result of its core job."""
        execution, part = StepArguments.of(args)
        running = execution._replace(fence=core.fence)
        try:
            job = await self._deps.reader.snapshot(running.job_id)
            if job is None or not _is_current(job, running):
                return _earlier_result(job, running)
            return await self._run_tracked(running, self._run(job, running, part, core))
        except StepLost:
            log.info("step %s: execution %s superseded, stopped", running.step, running.execution)
            return {**_identity(running), **_RESULT_SUPERSEDED}
        except StepCancelled:
            if core.cancel_requested:
                return None
            raise _self_cancelled() from None

    async def drop_superseded(self) -> int:
        """Stop executions that are no longer current: the workflow was cancelled or deleted."""
        tasks = dict(self._running_tasks)
        jobs = await self._deps.reader.snapshots([each.job_id for each in tasks.values()])
        dropped = 0
        for (task, running), job in zip(tasks.items(), jobs):
            is_needed = job is not None and (
                _is_current(job, running) or _is_complete(job, running)
            )
            if not is_needed and not task.done():
                self._dropped.add(task)
                task.cancel()
                dropped += 1
        return dropped

    async def _run_tracked(self, running: StepExecution, work: Any) -> dict[str, Any]:
        """Run in a separate task, so that `drop_superseded` can cancel just that."""
        task = asyncio.ensure_future(work)
        self._running_tasks[task] = running
        try:
            await asyncio.wait({task})
            if task.cancelled():
                raise StepLost if task in self._dropped else _self_cancelled()
            return task.result()  # type: ignore[no-any-return]
        finally:
            del self._running_tasks[task]
            self._dropped.discard(task)
            await cancel(task)

    async def _run(
        self, job: WorkflowJob, running: StepExecution, part: int | None, core: JobContext
    ) -> dict[str, Any]:
        step = self._function(job, running.step)
        options = parse_options(
            await self._deps.reader.options(running.job_id, running.step), running.job_id
        )
        context = StepContext(job, running, core, self._deps, options)
        output: StepOutput | int
        if isinstance(step, SplitStep):
            output = await self._split_runner.run(step, context, part)
        else:
            output = await step(context)
        if isinstance(output, int):
            return {**_identity(running), StepResultField.LEFT: output}
        return await self._complete(running, step_result(output), core)

    async def _complete(
        self, running: StepExecution, result: StepResult, core: JobContext
    ) -> dict[str, Any]:
        ids = self._deps.ids.for_step(core.job_id)
        outcome = await self._deps.store.complete(running, result, ids, self._core_ttl_s)
        if outcome.answer is WorkflowAnswer.REFUSED:
            code = str(outcome.facts.get(WorkflowFact.CODE) or WorkflowError.STEP_FAILED.value)
            items = ", ".join(map(str, outcome.facts.get(WorkflowFact.ITEMS) or ()))
            raise StepError(
                code, f"{items or 'an item'} was changed meanwhile; execute the step again"
            )
        if outcome.answer is WorkflowAnswer.ALREADY:
            return await self._finish_ended(running)
        if outcome.answer is not WorkflowAnswer.OK:
            raise StepLost
        return _result(running, len(result.items), result.summary)

    async def _finish_ended(self, running: StepExecution) -> dict[str, Any]:
        """The step had already ended: by an earlier call of this completion, or by a failure."""
        job = await self._deps.reader.snapshot(running.job_id)
        if job is None or not _is_complete(job, running):
            await revert_effects_or_defer(self._deps.store, running.job_id)
            raise StepLost
        return _earlier_result(job, running)

    def _function(self, job: WorkflowJob, name: str) -> Step:
        workflow = self._workflows.get(job.definition.name)
        if workflow is None:
            raise StepError(
                WorkflowError.UNKNOWN_WORKFLOW.value,
                f"unknown workflow {job.definition.name!r}; name its module in "
                "WORKER_HANDLERS of every worker, then execute the step again",
            )
        step = workflow.steps.get(name)
        if step is None:
            raise StepError(
                WorkflowError.UNKNOWN_STEP.value,
                f"workflow {job.definition.name!r} of this worker has no step {name!r}; "
                "create a new job",
            )
        return step


def _self_cancelled() -> StepError:
    return StepError(WorkflowError.STEP_CANCELLED.value, "the step canceled itself")


def _is_current(job: WorkflowJob, running: StepExecution) -> bool:
    """True if the job waits for this execution."""
    step = job.steps.get(running.step)
    return (
        step is not None
        and step.execution == running.execution
        and step.status is StepStatus.RUNNING
    )


def _is_complete(job: WorkflowJob, running: StepExecution) -> bool:
    """True if the execution has succeeded."""
    step = job.steps.get(running.step)
    return (
        step is not None
        and step.execution == running.execution
        and step.status is StepStatus.COMPLETE
    )


def _earlier_result(job: WorkflowJob | None, running: StepExecution) -> dict[str, Any]:
    """The result of an execution that has already ended."""
    if job is not None and _is_complete(job, running):
        step = job.steps[running.step]
        return _result(running, step.count, step.summary)
    return {**_identity(running), **_RESULT_SUPERSEDED}


def _result(running: StepExecution, items: int, summary: str) -> dict[str, Any]:
    return {
        **_identity(running),
        StepResultField.ITEMS: items,
        StepResultField.SUMMARY: summary,
    }


def _identity(running: StepExecution) -> dict[str, Any]:
    return {
        StepArgumentField.JOB: running.job_id,
        StepArgumentField.STEP: running.step,
        StepArgumentField.EXECUTION: running.execution,
    }


class UndoRunner:
    """Undoes operations with effects. Idempotent."""

    def __init__(
        self, store: WorkflowStore, effects: EffectStore, rag_service: RagService | None
    ) -> None:
        self._store = store
        self._effects = effects
        self._rag_service = rag_service

    async def undo(self, context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
        """Result for the gateway, which waits for it. A refusal does not fail the job."""
        arguments = UndoArguments.of(args)
        documents = await self._documents(context, arguments)
        outcome = await self._store.undo_with_effects(arguments.job_id, arguments.token)
        if documents and outcome.answer is WorkflowAnswer.OK and self._rag_service is not None:
            keys, before = documents
            left = await self._rag_service.records(keys, [each.id for each in before])
            kept = {each.id for each in left}  # claimed by other jobs
            await self._rag_service.removed(keys, [each for each in before if each.id not in kept])
        facts = outcome.facts
        return {
            UndoResultField.ANSWER: outcome.answer.value,
            UndoResultField.UNDONE: list(facts.get(UndoResultField.UNDONE) or ()),
            UndoResultField.ITEMS: list(facts.get(UndoResultField.ITEMS) or ()),
            UndoResultField.CODE: facts.get(UndoResultField.CODE),
        }

    async def _documents(
        self, context: JobContext, arguments: UndoArguments
    ) -> tuple[RagKeys, list[DocumentRecord]] | None:
        """The documents that the undo may delete; their vectors must be removed."""
        effects = await self._effects.get(arguments.job_id, arguments.token)
        if self._rag_service is None or not effects.documents:
            return None
        keys = self._rag_service.keys(effects.namespace, context.tenant)
        records = await self._rag_service.records(keys, list(effects.documents))
        return keys, [each for each in records if each.revision == effects.documents[each.id]]
