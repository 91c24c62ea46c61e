"""Split steps: each part is a core job, and the last part to end joins the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.workflow.operations import WorkflowFact
from sluice.common.contracts.workflow.statuses import ErrorField, WorkflowError
from sluice.common.features.workflows.store import WorkflowStore
from sluice.common.features.workflows.types import WorkflowAnswer
from sluice.common.jobs.store import read_reply
from sluice.worker.features.workflows.arguments import CoreJobIds
from sluice.worker.features.workflows.errors import StepError, StepLost, error_entry

if TYPE_CHECKING:
    from sluice.worker.features.workflows.context import StepContext
    from sluice.worker.features.workflows.output import StepOutput

MOST_PARTS: Final = 256
#: Limit in bytes of JSON of a part's result, and of the descriptions of all parts.
MOST_PART_BYTES: Final = 16 * 1024 * 1024
#: Name under which a step stores the descriptions of its parts.
PARTS_NAME: Final = "sluice.parts"
#: Members of a part's stored result.
_RESULT, _FAILED = "found", "failed"


class PartFailed(NamedTuple):
    """Takes the place of a result if a part failed."""

    code: str
    message: str


class SplitStep:
    """Base class of a step in parts. Values passed between its methods are JSON."""

    def most_failures(self, context: StepContext) -> int:
        """How many parts may fail with a StepError without failing the step."""
        return 0

    async def split(self, context: StepContext) -> Sequence[Any]:
        """Describe the parts; must be deterministic.

        With one part or none, the step is not split.
        """
        raise NotImplementedError

    async def run_part(self, context: StepContext, part: Any) -> Any:
        """Run one part, in any worker; returns its result."""
        raise NotImplementedError

    async def join(self, context: StepContext, results: list[Any]) -> StepOutput:
        """Combine the results of the parts, in order, into the output of the step."""
        raise NotImplementedError


class SplitStepRunner:
    """Runs split steps."""

    def __init__(
        self, client: Redis, store: WorkflowStore, ids: CoreJobIds, core_ttl_s: int
    ) -> None:
        self._client = client
        self._store = store
        self._ids = ids
        self._core_ttl_s = core_ttl_s

    async def run(
        self, step: SplitStep, context: StepContext, part: int | None
    ) -> StepOutput | int:
        """Run a part of a step, or all of it.

        Returns an int if that many other parts have not ended.
        """
        if part is None and not context.step_record(context.step).parts:
            parts = await self._split(step, context)
            if len(parts) <= 1:
                results = [await _run_one_part(step, context, each) for each in parts]
                return await self._join(step, context, results)
        else:
            context.part = part or 0
            parts = await self._parts(context)
        return await self._run_part(step, context, parts)

    async def _split(self, step: SplitStep, context: StepContext) -> Sequence[Any]:
        encoded = _encoded(list(await step.split(context)), "its parts")
        parts: list[Any] = codec.loads(encoded)
        if len(parts) > MOST_PARTS:
            raise StepError(
                WorkflowError.STEP_FAILED.value,
                f"the step has {len(parts)} parts, {MOST_PARTS} at most; make them larger",
            )
        if len(parts) > 1:
            await context.put(PARTS_NAME, encoded)
            core_jobs = [self._ids.core_job(context.core.job_id) for _ in parts[1:]]
            outcome = await self._store.split(context.running, core_jobs, self._core_ttl_s)
            if outcome.answer not in (WorkflowAnswer.OK, WorkflowAnswer.ALREADY):
                raise StepLost
            context.part = 0
        return parts

    async def _parts(self, context: StepContext) -> Sequence[Any]:
        raw = await context.get(context.step, PARTS_NAME)
        if raw is None:
            raise StepLost
        parts: list[Any] = codec.loads(raw)
        if context.part is None or not 0 <= context.part < len(parts):
            raise StepError(WorkflowError.STEP_FAILED.value, f"the step has no part {context.part}")
        return parts

    async def _run_part(
        self, step: SplitStep, context: StepContext, parts: Sequence[Any]
    ) -> StepOutput | int:
        assert context.part is not None
        [value] = await self._load_results(context, [context.part])
        if value is None:  # otherwise an earlier attempt has completed it
            value = _encoded(
                await _run_one_part(step, context, parts[context.part]), "what a part found"
            )
        outcome = await self._store.finish_part(context.running, context.part, value)
        if outcome.answer is not WorkflowAnswer.OK:
            raise StepLost
        left = int(outcome.facts.get(WorkflowFact.LEFT, 0))
        if left:
            return left
        values = await self._load_results(context, range(len(parts)))
        if not all(values):
            raise StepLost
        return await self._join(step, context, [codec.loads(each) for each in values if each])

    async def _load_results(self, context: StepContext, parts: Sequence[int]) -> list[bytes | None]:
        key = self._store.keys.parts(context.job_id)
        fields = [f"{context.execution_id}:{part}" for part in parts]
        command: Any = self._client.hmget(key, fields)
        return await read_reply(command) or [None] * len(fields)

    async def _join(
        self, step: SplitStep, context: StepContext, values: Sequence[dict[str, Any]]
    ) -> StepOutput:
        results = [
            _failure(value[_FAILED]) if _FAILED in value else value.get(_RESULT) for value in values
        ]
        failed = [result for result in results if isinstance(result, PartFailed)]
        most = step.most_failures(context)
        if len(failed) > most:
            first = failed[0]
            message = first.message
            if len(results) > 1:
                message = f"{len(failed)} of {len(results)} parts failed, {most} allowed: {message}"
            raise StepError(first.code, message)
        return await step.join(context, results)


async def _run_one_part(step: SplitStep, context: StepContext, part: Any) -> dict[str, Any]:
    """The result of a part, or its failure if failures are allowed."""
    try:
        return {_RESULT: await step.run_part(context, part)}
    except StepError as error:
        if step.most_failures(context) <= 0:
            raise
        return {_FAILED: error_entry(error.code, str(error))}


def _failure(stored: dict[str, Any]) -> PartFailed:
    return PartFailed(str(stored.get(ErrorField.CODE)), str(stored.get(ErrorField.MESSAGE)))


def _encoded(value: object, what: str) -> bytes:
    try:
        encoded = codec.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise StepError(WorkflowError.STEP_FAILED.value, f"{what} must be JSON: {error}") from None
    if len(encoded) > MOST_PART_BYTES:
        raise StepError(
            WorkflowError.STEP_FAILED.value,
            f"{what} would take {len(encoded)} bytes of JSON, {MOST_PART_BYTES} at most; use "
            "more parts",
        )
    return encoded
