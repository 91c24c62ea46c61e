"""The internal tool `workflow.step`: one attempt of a step, from check to report."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from redis.asyncio import Redis

from common.cancellation import cancel
from common.contracts.workflow import (
    Fact,
    StepArgument,
    StepOutcome,
    StepStatus,
    WorkflowError,
)
from common.workflow.records import WorkflowJob
from common.workflow.types import Running, StepResult, WorkflowAnswer
from worker.context import JobContext
from worker.workflows.arguments import StepArguments
from worker.workflows.context import Means, StepContext, options_in
from worker.workflows.errors import StepCancelled, StepError, StepLost
from worker.workflows.failing import take_back_now_or_later
from worker.workflows.output import StepOutput, result_of
from worker.workflows.registry import Step, Workflows
from worker.workflows.splitting import SplitStep, Splitting

log = logging.getLogger(__name__)

_RESULT_SUPERSEDED: Final = {StepOutcome.SUPERSEDED.value: True}


class StepRunner:
    """Runs steps, any number at once."""

    def __init__(self, workflows: Workflows, means: Means, client: Redis, core_ttl_s: int) -> None:
        self._workflows = workflows
        self._means = means
        self._core_ttl_s = core_ttl_s
        self._splitting = Splitting(client, means.store, means.ids, core_ttl_s)
        self._under_way: dict[asyncio.Task[Any], Running] = {}
        #: Those of them that `drop_superseded` has ended.
        self._dropped: set[asyncio.Task[Any]] = set()

    async def step(self, core: JobContext, args: dict[str, Any]) -> dict[str, Any] | None:
        """Take a step to its end; the result of its core job."""
        wanted, part = StepArguments.of(args)
        running = wanted._replace(fence=core.fence)
        try:
            job = await self._means.reader.snapshot(running.job_id)
            if job is None or not _counts(job, running):
                return _told_before(job, running)
            return await self._watched(running, self._run(job, running, part, core))
        except StepLost:
            log.info(
                "execution %s of step %s is not wanted any more", running.execution, running.step
            )
            return {**_about(running), **_RESULT_SUPERSEDED}
        except StepCancelled:
            if core.cancel_requested:
                return None
            raise _ended_itself() from None

    async def drop_superseded(self) -> int:
        """Stop what runs here and no longer counts: its workflow was cancelled, or it is gone."""
        under_way = dict(self._under_way)
        jobs = await self._means.reader.snapshots([each.job_id for each in under_way.values()])
        dropped = 0
        for (task, running), job in zip(under_way.items(), jobs):
            wanted = job is not None and (_counts(job, running) or _is_complete(job, running))
            if not wanted and not task.done():
                self._dropped.add(task)
                task.cancel()
                dropped += 1
        return dropped

    async def _watched(self, running: Running, work: Any) -> dict[str, Any]:
        """In a task of its own, so that `drop_superseded` can end it and nothing else."""
        task = asyncio.ensure_future(work)
        self._under_way[task] = running
        try:
            await asyncio.wait({task})
            if task.cancelled():
                raise StepLost if task in self._dropped else _ended_itself()
            return task.result()  # type: ignore[no-any-return]
        finally:
            del self._under_way[task]
            self._dropped.discard(task)
            await cancel(task)

    async def _run(
        self, job: WorkflowJob, running: Running, part: int | None, core: JobContext
    ) -> dict[str, Any]:
        step = self._function(job, running.step)
        options = options_in(
            await self._means.reader.options(running.job_id, running.step), running.job_id
        )
        context = StepContext(job, running, core, self._means, options)
        output: StepOutput | int
        if isinstance(step, SplitStep):
            output = await self._splitting.run(step, context, part)
        else:
            output = await step(context)
        if isinstance(output, int):
            return {**_about(running), StepOutcome.LEFT.value: output}
        return await self._complete(running, result_of(output), core)

    async def _complete(
        self, running: Running, result: StepResult, core: JobContext
    ) -> dict[str, Any]:
        ids = self._means.ids.of_step(core.job_id)
        outcome = await self._means.store.complete(running, result, ids, self._core_ttl_s)
        if outcome.answer is WorkflowAnswer.REFUSED:
            code = str(outcome.facts.get(Fact.CODE.value) or WorkflowError.STEP_FAILED.value)
            items = ", ".join(map(str, outcome.facts.get(Fact.ITEMS.value) or ()))
            raise StepError(
                code, f"{items or 'something'} was changed meanwhile; execute the step again"
            )
        if outcome.answer is WorkflowAnswer.ALREADY:
            return await self._ended_before(running)
        if outcome.answer is not WorkflowAnswer.OK:
            raise StepLost
        return _result(running, len(result.items), result.summary)

    async def _ended_before(self, running: Running) -> dict[str, Any]:
        """Whatever ended it: an earlier call of this very completion, or somebody else, badly."""
        job = await self._means.reader.snapshot(running.job_id)
        if job is None or not _is_complete(job, running):
            await take_back_now_or_later(self._means.store, running.job_id)
            raise StepLost
        return _told_before(job, running)

    def _function(self, job: WorkflowJob, name: str) -> Step:
        workflow = self._workflows.get(job.definition.name)
        if workflow is None:
            raise StepError(
                WorkflowError.UNKNOWN_WORKFLOW.value,
                f"the worker does not know workflow {job.definition.name!r}; name its module in "
                "WORKER_HANDLERS of every worker, then execute the step again",
            )
        step = workflow.steps.get(name)
        if step is None:
            raise StepError(
                WorkflowError.UNKNOWN_STEP.value,
                f"the worker's {job.definition.name!r} has no step {name!r} any more; make a new "
                "job of it",
            )
        return step


def _ended_itself() -> StepError:
    return StepError(
        WorkflowError.STEP_CANCELLED.value, "the step ended itself as if it was canceled"
    )


def _counts(job: WorkflowJob, running: Running) -> bool:
    """Whether the execution is the one that the job waits for."""
    step = job.steps.get(running.step)
    return (
        step is not None
        and step.execution == running.execution
        and step.status is StepStatus.RUNNING
    )


def _is_complete(job: WorkflowJob, running: Running) -> bool:
    """Whether the execution has ended well."""
    step = job.steps.get(running.step)
    return (
        step is not None
        and step.execution == running.execution
        and step.status is StepStatus.COMPLETE
    )


def _told_before(job: WorkflowJob | None, running: Running) -> dict[str, Any]:
    """The result of an execution that has ended: by an attempt before this one, or for good."""
    if job is not None and _is_complete(job, running):
        step = job.steps[running.step]
        return _result(running, step.count, step.summary)
    return {**_about(running), **_RESULT_SUPERSEDED}


def _result(running: Running, items: int, summary: str) -> dict[str, Any]:
    return {
        **_about(running),
        StepOutcome.ITEMS.value: items,
        StepOutcome.SUMMARY.value: summary,
    }


def _about(running: Running) -> dict[str, Any]:
    return {
        StepArgument.JOB.value: running.job_id,
        StepArgument.STEP.value: running.step,
        StepArgument.EXECUTION.value: running.execution,
    }
