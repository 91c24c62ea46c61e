"""Executes a step, waits for it as long as requested, and returns its result; cancels a job."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.contracts.access import AuditAction
from sluice.common.contracts.jobs import DataField, JobField
from sluice.common.contracts.workflow.operations import WorkflowFact
from sluice.common.contracts.workflow.statuses import (
    StepKind,
    StepStatus,
    WorkflowError,
    WorkflowStatus,
)
from sluice.common.errors import CorruptKey, StoreUnavailable
from sluice.common.features.workflows.definitions import StepDefinition
from sluice.common.features.workflows.records import StepRecord, WorkflowJob
from sluice.common.features.workflows.types import ExecuteCommand, WorkflowOutcome
from sluice.common.text import plural
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.features.workflows import rendering
from sluice.gateway.features.workflows.create import validate_options
from sluice.gateway.features.workflows.decide import EMPTY_PAGE, review
from sluice.gateway.features.workflows.idempotency import (
    HttpAnswer,
    IdempotentRequest,
    find_replay,
    identify_request,
    keep_answer,
    raise_if_refused,
    replay_answer,
    send_answer,
)
from sluice.gateway.features.workflows.lookup import (
    ANSWER_MARGIN_MS,
    WorkflowProblem,
    call_with_admission,
    check_admission,
    check_pressure,
    check_task,
    claim_ms,
    find_job,
    is_step_over,
    job_not_found,
    may_read,
    new_ids,
    omit,
    wait_for_step,
    wait_s_of,
    workflows_of,
)
from sluice.gateway.features.workflows.models.requests import (
    CancelRequest,
    ExecuteRequest,
    ReviewPayload,
)
from sluice.gateway.features.workflows.models.responses import StepErrorView
from sluice.gateway.http.body import parse_body
from sluice.gateway.jobs.admission import admission_of
from sluice.gateway.state import state_of

#: Reason for canceling the jobs of steps, if the request gives none.
_REASON: Final = "the workflow job was cancelled"
_SUCCESS: Final = "success"


async def cancel(request: Request, job_id: str, body: Any) -> Response:
    """Cancel a workflow job; idempotent."""
    wanted = parse_body(CancelRequest, body)
    job = await find_job(request, job_id)
    state, caller = state_of(request), caller_of(request)
    check_task(caller)
    if caller.tenant != job.tenant:
        await state.access.record(request, AuditAction.JOB_CANCEL, job.job_id)
    known = identify_request(request, body, f"cancel:{job.job_id}", ANSWER_MARGIN_MS)
    outcome = await workflows_of(request).store.cancel(job.job_id, known.once, wanted.reason)
    check_admission(state, outcome)
    raise_if_refused(outcome)
    if outcome.replayed and outcome.status_code:
        return replay_answer(job.job_id, outcome.status_code, outcome.body)
    find_replay(outcome)
    settings = state.settings
    data = codec.dumps({DataField.REASON: wanted.reason or _REASON})
    # Also for a repeated request: the first one may have stopped before this.
    for core_job in outcome.facts.get(WorkflowFact.CORE_JOBS) or ():
        await state.store.cancel(str(core_job), settings.worker_group, data, settings.job_ttl_s)
    found = await workflows_of(request).reader.snapshot(job.job_id)
    if found is None:
        raise job_not_found()
    answer = HttpAnswer(
        200, {_SUCCESS: True, WorkflowFact.JOB_ID: job.job_id, **rendering.job_status(found)}
    )
    return await send_answer(request, job.job_id, known, answer, outcome)


_UNSUCCESSFUL: Final = (StepStatus.FAILED, StepStatus.CANCELLED)
_ACCEPTED: Final = 202
_PAYLOAD: Final = JobField.PAYLOAD


async def execute(
    request: Request, job_id: str, step_name: str, body: Any, prefer: list[str] | None
) -> Response:
    """Start a step, or the first incomplete one before it, and return its result."""
    wanted = parse_body(ExecuteRequest, body)
    job = await find_job(request, job_id)
    step = declared_step(job, step_name)
    check_task(caller_of(request))
    wait_s = wait_s_of(request, wanted.wait_s, prefer)
    scope = f"execute:{job.job_id}:{step.name}"
    known = identify_request(request, omit(body, "wait_s"), scope, claim_ms(wait_s))
    if step.kind is StepKind.REVIEW:
        payload = parse_body(ReviewPayload, wanted.payload or {}, _PAYLOAD)
        if payload.decisions or payload.finalize:
            return await review(request, job, step, payload, known)
    command = ExecuteCommand(
        job.job_id, step.name, _options(step, wanted), wanted.strict, wanted.discard_decisions
    )
    await check_pressure(request, known.once)
    outcome = await _start(request, job, command, known)
    raise_if_refused(outcome)
    if outcome.replayed and outcome.status_code:
        return await _replay(request, job, step.name, known, outcome)
    find_replay(outcome)
    found = await wait_for_step(request, job, step.name, wait_s)
    if found is None:
        raise job_not_found()
    if outcome.replayed and may_read(request) and not _is_current_execution(found, outcome):
        answer = _superseded_answer(found, step.name, outcome)
    else:
        answer = await execution_answer(request, found, step.name, outcome)
    return await send_answer(request, job.job_id, known, answer, outcome)


def _options(step: StepDefinition, wanted: ExecuteRequest) -> bytes | None:
    # The payload of a review contains decisions, which are not stored as options.
    if wanted.payload is None or step.kind is StepKind.REVIEW:
        return None
    return validate_options(step, wanted.payload, _PAYLOAD)


async def _start(
    request: Request, job: WorkflowJob, command: ExecuteCommand, known: IdempotentRequest
) -> WorkflowOutcome:
    state = state_of(request)
    workflows = workflows_of(request).store
    ids, admission = new_ids(state, job.tail), admission_of(request)
    return await call_with_admission(
        request, lambda: workflows.execute(command, known.once, ids, admission)
    )


async def execution_answer(
    request: Request, job: WorkflowJob, step: str, outcome: WorkflowOutcome
) -> HttpAnswer:
    """The response to an execute request, from the state of the job."""
    record = job.steps[step]
    if not may_read(request):
        return _accepted_answer(job, step, outcome)
    if record.status is StepStatus.COMPLETE:
        try:
            page = await workflows_of(request).reader.items(job.job_id, step)
        except (StoreUnavailable, CorruptKey):
            return _accepted_answer(
                job, step, outcome
            )  # the result exists, but cannot be read at the moment
        return HttpAnswer(200, rendering.execution(job, step, record.execution or None, page))
    if failed := _failed_step(job, record):
        return HttpAnswer(200, _failure(job, step, failed))
    return _accepted_answer(job, step, outcome)


def _failed_step(job: WorkflowJob, wanted: StepRecord) -> StepRecord | None:
    """The failed or cancelled step that keeps the requested one from completing."""
    if wanted.status in _UNSUCCESSFUL:
        return wanted
    if job.status not in (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED):
        return None
    ended = (record for record in job.steps.values() if record.status in _UNSUCCESSFUL)
    return next(ended, wanted)


def _failure(job: WorkflowJob, step: str, failed: StepRecord) -> dict[str, Any]:
    """The body for a step that failed; the request itself succeeded."""
    cancelled = job.status is WorkflowStatus.CANCELLED or failed.status is StepStatus.CANCELLED
    code = WorkflowError.STEP_CANCELLED if cancelled else WorkflowError.STEP_FAILED
    summary = rendering.summary_of(failed)
    if failed.status not in _UNSUCCESSFUL:
        summary = f"The job ended before step '{step}'"
    recorded = [rendering.error_view(error) for error in failed.errors]
    errors = [StepErrorView(code=code.value, message=summary)]
    errors += [error for error in recorded if error.code != code.value]
    execution_id = job.steps[step].execution or failed.execution or None
    return rendering.execution(
        job, step, execution_id, EMPTY_PAGE, summary=summary, success=False, errors=errors
    )


def _accepted_answer(job: WorkflowJob, step: str, outcome: WorkflowOutcome) -> HttpAnswer:
    """The 202 response: the step is not complete, or waits for decisions."""
    facts = outcome.facts
    execution_id = facts.get(WorkflowFact.EXECUTION_ID) or job.steps[step].execution or None
    if job.status is WorkflowStatus.WAITING_INPUT:
        summary = f"Step '{job.current_step}' waits for decisions on {plural(job.proposed, 'item')}"
    else:
        summary = f"Execution accepted for step '{step}'"
    body = rendering.execution(job, step, execution_id, EMPTY_PAGE, summary=summary, errors=())
    return HttpAnswer(_ACCEPTED, body)


async def _replay(
    request: Request,
    job: WorkflowJob,
    step: str,
    known: IdempotentRequest,
    outcome: WorkflowOutcome,
) -> Response:
    """The stored response to a repeated request; once the execution has ended, its result."""
    status, body = outcome.status_code, outcome.body
    if status != _ACCEPTED and not may_read(request):  # stored for another caller, who may read it
        hidden = _accepted_answer(job, step, outcome)
        return replay_answer(job.job_id, hidden.status, codec.dumps(hidden.body))
    if status == _ACCEPTED and may_read(request):
        # Read again: the execution may be newer than the snapshot of the job.
        found = await workflows_of(request).reader.snapshot(job.job_id)
        answer = None if found is None else await _current_answer(request, found, step, outcome)
        if answer is not None and answer.status != _ACCEPTED:
            status, body = answer.status, codec.dumps(answer.body)
            await keep_answer(request, known, status, body)
    return replay_answer(job.job_id, status, body)


async def _current_answer(
    request: Request, job: WorkflowJob, step: str, outcome: WorkflowOutcome
) -> HttpAnswer | None:
    """The result of an accepted execution; None while it runs."""
    if not _is_current_execution(job, outcome):
        return _superseded_answer(job, step, outcome)
    return await execution_answer(request, job, step, outcome) if is_step_over(job, step) else None


def _superseded_answer(job: WorkflowJob, step: str, outcome: WorkflowOutcome) -> HttpAnswer:
    """The response for an execution that was replaced by a later one."""
    execution_id = str(outcome.facts.get(WorkflowFact.EXECUTION_ID) or "")
    record = job.steps.get(str(outcome.facts.get(WorkflowFact.STEP)))
    newer = record.execution if record is not None else ""
    summary = f"Execution {execution_id} was superseded by {newer or 'one of an earlier step'}"
    error = StepErrorView(code=WorkflowError.STEP_LOST.value, message=summary)
    body = rendering.execution(
        job, step, execution_id, EMPTY_PAGE, summary=summary, success=False, errors=[error]
    )
    return HttpAnswer(200, body)


def _is_current_execution(job: WorkflowJob, outcome: WorkflowOutcome) -> bool:
    """True if the started execution is still the current one of its step."""
    record = job.steps.get(str(outcome.facts.get(WorkflowFact.STEP)))
    execution = outcome.facts.get(WorkflowFact.EXECUTION_ID)
    return record is not None and (not execution or record.execution == execution)


def declared_step(job: WorkflowJob, name: str) -> StepDefinition:
    """The step of that name; raises a 422 that lists the steps."""
    step = job.definition.step(name)
    if step is None:
        names = ", ".join(each.name for each in job.definition.steps)
        raise WorkflowProblem(
            422,
            WorkflowError.UNKNOWN_STEP,
            f"Workflow '{job.definition.name}' has no such step. Its steps: {names}.",
            "step_name",
        )
    return step
