"""Executing a step: started, waited for as long as the client likes, answered with its result."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.contracts.jobs import JobField
from common.contracts.workflow import Fact, StepKind, StepStatus, WorkflowError, WorkflowStatus
from common.errors import CorruptKey, StoreUnavailable
from common.workflow.definition import StepDefinition
from common.workflow.records import StepRecord, WorkflowJob
from common.workflow.types import Execute, Outcome
from gateway.callers import caller_of
from gateway.state import state_of
from gateway.workflow import rendering
from gateway.workflow.action_models import ExecuteRequest, ReviewPayload
from gateway.workflow.answers import Made, answer, check_refused, remember, repeated
from gateway.workflow.asking import validated, without
from gateway.workflow.deciding import NOTHING, review
from gateway.workflow.envelope import WorkflowProblem, no_such_job
from gateway.workflow.keys_once import Keyed, keyed, replay_of
from gateway.workflow.lookup import find_job, may_read
from gateway.workflow.models import StepErrorView
from gateway.workflow.outcomes import admission_of, admitted, check_pressure, check_task, new_ids
from gateway.workflow.step_options import checked_options
from gateway.workflow.waiting import claim_ms, is_over, step_over, wait_s_of

_ENDED_BADLY: Final = (StepStatus.FAILED, StepStatus.CANCELLED)
_ACCEPTED: Final = 202
_PAYLOAD: Final = JobField.PAYLOAD.value


async def execute(request: Request, body: Any) -> Response:
    """Start a step, or the first incomplete one before it, and answer with what came of it."""
    wanted = validated(ExecuteRequest, body)
    job = await find_job(request)
    step = declared_step(job, request.path_params["step_name"])
    check_task(caller_of(request))
    wait_s = wait_s_of(request, wanted.wait_s)
    scope = f"execute:{job.job_id}:{step.name}"
    known = keyed(request, without(body, "wait_s"), scope, claim_ms(wait_s))
    if step.kind is StepKind.REVIEW:
        payload = validated(ReviewPayload, wanted.payload or {}, _PAYLOAD)
        if payload.decisions or payload.finalize:
            return await review(request, job, step, payload, known)
    asked = Execute(
        job.job_id, step.name, _options(step, wanted), wanted.strict, wanted.discard_decisions
    )
    await check_pressure(request, known.once)
    outcome = await _start(request, job, asked, known)
    check_refused(outcome)
    if outcome.replayed and outcome.status_code:
        return await _repeat(request, job, step.name, known, outcome)
    replay_of(outcome)
    found = await step_over(request, job, step.name, wait_s)
    if found is None:
        raise no_such_job()
    if outcome.replayed and may_read(request) and not _is_same(found, outcome):
        made = _superseded(found, step.name, outcome)
    else:
        made = await made_of(request, found, step.name, outcome)
    return await answer(request, job.job_id, known, made, outcome)


def _options(step: StepDefinition, wanted: ExecuteRequest) -> bytes | None:
    # Those of a review are its decisions, which hold once.
    if wanted.payload is None or step.kind is StepKind.REVIEW:
        return None
    return checked_options(step, wanted.payload, _PAYLOAD)


async def _start(request: Request, job: WorkflowJob, asked: Execute, known: Keyed) -> Outcome:
    state = state_of(request)
    workflows = state.workflows
    ids, admission = new_ids(state, job.tail), admission_of(request)
    return await admitted(request, lambda: workflows.execute(asked, known.once, ids, admission))


async def made_of(request: Request, job: WorkflowJob, step: str, outcome: Outcome) -> Made:
    """The answer to an execute, as the job stands and its client may see it."""
    record = job.steps[step]
    if not may_read(request):
        return _accepted(job, step, outcome)
    if record.status is StepStatus.COMPLETE:
        try:
            page = await state_of(request).workflow_reader.items(job.job_id, step)
        except (StoreUnavailable, CorruptKey):
            return _accepted(job, step, outcome)  # it is there; only not to be read just now
        return Made(200, rendering.execution(job, step, record.execution or None, page))
    if failed := _ended_badly(job, record):
        return Made(200, _failure(job, step, failed))
    return _accepted(job, step, outcome)


def _ended_badly(job: WorkflowJob, wanted: StepRecord) -> StepRecord | None:
    """The step that ended without success, so that nothing more comes of the wanted one."""
    if wanted.status in _ENDED_BADLY:
        return wanted
    if job.status not in (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED):
        return None
    ended = (record for record in job.steps.values() if record.status in _ENDED_BADLY)
    return next(ended, wanted)


def _failure(job: WorkflowJob, step: str, failed: StepRecord) -> dict[str, Any]:
    """The step ran, and failed: the request itself was fine."""
    cancelled = job.status is WorkflowStatus.CANCELLED or failed.status is StepStatus.CANCELLED
    code = WorkflowError.STEP_CANCELLED if cancelled else WorkflowError.STEP_FAILED
    told = rendering.summary_of(failed)
    if failed.status not in _ENDED_BADLY:
        told = f"The job ended before step '{step}'"
    recorded = [rendering.error_view(error) for error in failed.errors]
    errors = [StepErrorView(code=code.value, message=told)]
    errors += [error for error in recorded if error.code != code.value]
    execution_id = job.steps[step].execution or failed.execution or None
    return rendering.execution(
        job, step, execution_id, NOTHING, summary=told, success=False, errors=errors
    )


def _accepted(job: WorkflowJob, step: str, outcome: Outcome) -> Made:
    """It is not finished, or waits for somebody."""
    facts = outcome.facts
    execution_id = facts.get(Fact.EXECUTION_ID.value) or job.steps[step].execution or None
    if job.status is WorkflowStatus.WAITING_INPUT:
        summary = f"Step '{job.current_step}' waits for decisions on {job.proposed} items"
    else:
        summary = f"Execution accepted for step '{step}'"
    body = rendering.execution(job, step, execution_id, NOTHING, summary=summary, errors=())
    return Made(_ACCEPTED, body)


async def _repeat(
    request: Request, job: WorkflowJob, step: str, known: Keyed, outcome: Outcome
) -> Response:
    """The answer that the request got before; once the execution has ended, its result."""
    status, body = outcome.status_code, outcome.body
    if status != _ACCEPTED and not may_read(request):  # somebody else who may has asked, too
        hidden = _accepted(job, step, outcome)
        return repeated(job.job_id, hidden.status, codec.dumps(hidden.body))
    if status == _ACCEPTED and may_read(request):
        # Read again: the execution may be younger than what was known of the job.
        found = await state_of(request).workflow_reader.snapshot(job.job_id)
        made = None if found is None else await _became(request, found, step, outcome)
        if made is not None and made.status != _ACCEPTED:
            status, body = made.status, codec.dumps(made.body)
            await remember(request, known, status, body)
    return repeated(job.job_id, status, body)


async def _became(request: Request, job: WorkflowJob, step: str, outcome: Outcome) -> Made | None:
    """What came of an execution that was accepted; None while it goes on."""
    if not _is_same(job, outcome):
        return _superseded(job, step, outcome)
    return await made_of(request, job, step, outcome) if is_over(job, step) else None


def _superseded(job: WorkflowJob, step: str, outcome: Outcome) -> Made:
    """Its step was executed anew, or one before it: nothing comes of it any more."""
    execution_id = str(outcome.facts.get(Fact.EXECUTION_ID.value) or "")
    record = job.steps.get(str(outcome.facts.get(Fact.STEP.value)))
    newer = record.execution if record is not None else ""
    told = f"Execution {execution_id} was superseded by {newer or 'one of an earlier step'}"
    error = StepErrorView(code=WorkflowError.STEP_LOST.value, message=told)
    body = rendering.execution(
        job, step, execution_id, NOTHING, summary=told, success=False, errors=[error]
    )
    return Made(200, body)


def _is_same(job: WorkflowJob, outcome: Outcome) -> bool:
    """Whether the execution that was started is still the one that counts."""
    record = job.steps.get(str(outcome.facts.get(Fact.STEP.value)))
    execution = outcome.facts.get(Fact.EXECUTION_ID.value)
    return record is not None and (not execution or record.execution == execution)


def declared_step(job: WorkflowJob, name: str) -> StepDefinition:
    """The step of that name; a 422 names those that there are."""
    step = job.definition.step(name)
    if step is None:
        names = ", ".join(each.name for each in job.definition.steps)
        raise WorkflowProblem(
            422,
            WorkflowError.UNKNOWN_STEP,
            f"Workflow '{job.definition.name}' has no such step. It has: {names}.",
            "step_name",
        )
    return step
