"""Decides on proposals: through the review step, or in bulk."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.contracts.workflow.operations import WorkflowFact
from sluice.common.contracts.workflow.statuses import (
    MOST_ITEMS,
    Selection,
    StepKind,
    StepStatus,
    WorkflowError,
)
from sluice.common.features.workflows.definitions import StepDefinition
from sluice.common.features.workflows.records import ItemPage, PageInfo, WorkflowJob
from sluice.common.features.workflows.types import DecideCommand, Decision, WorkflowOutcome
from sluice.common.text import plural
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.features.workflows import rendering
from sluice.gateway.features.workflows.idempotency import (
    HttpAnswer,
    IdempotentRequest,
    find_replay,
    identify_request,
    raise_if_refused,
    replay_answer,
    send_answer,
)
from sluice.gateway.features.workflows.lookup import (
    ANSWER_MARGIN_MS,
    WorkflowProblem,
    call_with_admission,
    check_task,
    find_job,
    invalid_field,
    item_id_of,
    job_not_found,
    may_read,
    new_ids,
    workflows_of,
)
from sluice.gateway.features.workflows.models.requests import (
    BulkRequest,
    DecisionInput,
    ReviewPayload,
)
from sluice.gateway.features.workflows.models.responses import (
    BulkResponse,
    DecisionsView,
    StartedStepView,
    StepErrorView,
    to_json_dict,
)
from sluice.gateway.http.body import parse_body
from sluice.gateway.jobs.admission import admission_of
from sluice.gateway.state import state_of

#: Most changed items in a response; the number of all is always given.
MAX_SHOWN_ITEMS: Final = 500
#: A page without items.
EMPTY_PAGE: Final = ItemPage((), PageInfo(0, False, 0, 0))


async def decide_in_bulk(request: Request, job_id: str, body: Any) -> Response:
    wanted = parse_body(BulkRequest, body)
    job = await find_job(request, job_id)
    check_task(caller_of(request))
    step = proposing_step(job)
    known = identify_request(request, body, f"bulk:{job.job_id}", ANSWER_MARGIN_MS)
    outcome = await _decide(request, job, _bulk_decide(request, job, step, wanted), known)
    if outcome.replayed and outcome.status_code:
        return replay_answer(job.job_id, outcome.status_code, outcome.body)
    answer = await _bulk_answer(request, job, step, outcome)
    return await send_answer(request, job.job_id, known, answer, outcome)


async def _bulk_answer(
    request: Request, job: WorkflowJob, step: StepDefinition, outcome: WorkflowOutcome
) -> HttpAnswer:
    """The response to a bulk request; 409 if all items have changed meanwhile."""
    facts, errors = outcome.facts, errors_of(outcome.facts)
    ids = [str(item_id) for item_id in facts.get(WorkflowFact.APPLIED) or ()]
    conflicts = _all_stale(facts, errors)
    if conflicts:
        ids = [str(error.item_id) for error in errors]
    shown = ids[:MAX_SHOWN_ITEMS] if may_read(request) else []
    items = await workflows_of(request).reader.items_by_id(job.job_id, shown)
    told = to_json_dict(
        BulkResponse(
            success=not errors,
            job_id=job.job_id,
            step=step.name,
            items=[rendering.item_view(item) for item in items],
            errors=errors,
            **dict(_decisions_view(facts, errors)),
        )
    )
    if conflicts:
        told["detail"] = errors[0].message
    return HttpAnswer(409 if conflicts else 200, told)


async def review(
    request: Request,
    job: WorkflowJob,
    step: StepDefinition,
    payload: ReviewPayload,
    known: IdempotentRequest,
) -> Response:
    """Decide through the review step, which ends with the last decision."""
    proposing = job.definition.step(step.reviews)
    assert proposing is not None
    decisions = _decisions(proposing, payload.decisions)
    wanted = DecideCommand(
        job.job_id,
        caller_of(request).who,
        decisions,
        token=_token(),
        finalize=payload.finalize,
        reviewing=True,
        step=step.name,
    )
    outcome = await _decide(request, job, wanted, known)
    if outcome.replayed and outcome.status_code and may_read(request):
        return replay_answer(job.job_id, outcome.status_code, outcome.body)
    facts, errors = outcome.facts, errors_of(outcome.facts)
    if _all_stale(facts, errors):
        answer = await _bulk_answer(request, job, step, outcome)
    else:
        answer = await _review_answer(request, job, step, outcome)
    if outcome.status_code:  # stored already, perhaps with results that this caller may not read
        return replay_answer(job.job_id, answer.status, codec.dumps(answer.body))
    return await send_answer(request, job.job_id, known, answer, outcome)


async def _review_answer(
    request: Request, job: WorkflowJob, step: StepDefinition, outcome: WorkflowOutcome
) -> HttpAnswer:
    """The state of the review; its result only if the caller may read it."""
    reader = workflows_of(request).reader
    found = await reader.snapshot(job.job_id)
    if found is None:
        raise job_not_found()
    facts, errors = outcome.facts, errors_of(outcome.facts)
    record = found.steps[step.name]
    completed = bool(facts.get(WorkflowFact.COMPLETED)) or record.status is StepStatus.COMPLETE
    shown = completed and may_read(request)
    summary = None
    if not completed:
        pending = facts.get(WorkflowFact.PENDING, found.proposed)
        summary = f"Step '{step.name}' waits for decisions on {plural(pending, 'item')}"
    told = rendering.execution(
        found,
        step.name,
        record.execution or None,
        await reader.items(job.job_id, step.name) if shown else EMPTY_PAGE,
        summary=summary,
        success=not errors,
        errors=errors,
    )
    told |= to_json_dict(_decisions_view(facts, errors))
    return HttpAnswer(200 if shown else 202, told)


async def _decide(
    request: Request, job: WorkflowJob, wanted: DecideCommand, known: IdempotentRequest
) -> WorkflowOutcome:
    state = state_of(request)
    workflows = workflows_of(request).store
    ids, admission = new_ids(state, job.tail), admission_of(request)
    outcome = await call_with_admission(
        request, lambda: workflows.decide(wanted, known.once, ids, admission)
    )
    raise_if_refused(outcome)
    if not outcome.status_code:
        find_replay(outcome)
    return outcome


def _bulk_decide(
    request: Request, job: WorkflowJob, step: StepDefinition, wanted: BulkRequest
) -> DecideCommand:
    chosen = Selection.ALL if wanted.all else Selection.FILTERED
    decisions: list[Decision] = []
    if wanted.proposal_ids is not None:
        chosen = Selection.SELECTED
        ids = list(dict.fromkeys(item_id_of(step, name) for name in wanted.proposal_ids))
        versions = {item_id_of(step, name): number for name, number in wanted.versions.items()}
        if unnamed := versions.keys() - set(ids):
            raise invalid_field("versions", f"{min(unnamed)} is not among proposal_ids")
        # The note belongs to the operation: it is stored once, not with each item.
        decisions = [Decision(item_id, wanted.action, versions.get(item_id, 0)) for item_id in ids]
    narrowed = wanted.filter
    return DecideCommand(
        job.job_id,
        caller_of(request).who,
        decisions,
        action=None if decisions else wanted.action,
        status=None if narrowed is None else narrowed.status,
        min_confidence=None if narrowed is None else narrowed.min_confidence,
        note=wanted.note,
        operation=f"{wanted.action.value}_{chosen}",
        token=_token(),
        step=step.name,
    )


def _decisions(step: StepDefinition, inputs: Sequence[DecisionInput]) -> list[Decision]:
    found: dict[str, Decision] = {}
    for index, given in enumerate(inputs):
        item_id = item_id_of(step, given.id)
        if item_id in found:
            raise invalid_field(f"payload.decisions[{index}].id", f"{item_id} is given twice")
        found[item_id] = Decision(item_id, given.action, given.version or 0, given.note)
    return list(found.values())


def proposing_step(job: WorkflowJob) -> StepDefinition:
    """The step whose items are decided on: that of the waiting review, otherwise the last complete
    one."""
    steps = [step for step in job.definition.steps if step.proposes]
    if not steps:
        raise WorkflowProblem(
            409,
            WorkflowError.NOT_REVIEWABLE,
            f"No step of workflow '{job.definition.name}' creates proposals.",
        )
    for step in job.definition.steps:
        if step.kind is StepKind.REVIEW and job.step(step).status is StepStatus.WAITING_INPUT:
            return next(each for each in steps if each.name == step.reviews)
    complete = [step for step in steps if job.step(step).status is StepStatus.COMPLETE]
    return complete[-1] if complete else steps[0]


def errors_of(facts: Mapping[str, Any]) -> list[StepErrorView]:
    """One error for each item that was not decided."""
    found = []
    for failed in list(facts.get(WorkflowFact.FAILED) or ())[:MOST_ITEMS]:
        code = str(failed.get(WorkflowFact.CODE))
        more = {
            name: failed[name]
            for name in (WorkflowFact.VERSION, WorkflowFact.STATUS)
            if failed.get(name) is not None
        }
        words = _WORDS.get(code, "it cannot be decided on now")
        item_id = str(failed.get(WorkflowFact.ID))
        found.append(
            StepErrorView(code=code, message=f"{item_id}: {words}", item_id=item_id, **more)
        )
    return found


def _decisions_view(facts: Mapping[str, Any], errors: Sequence[StepErrorView]) -> DecisionsView:
    started = facts.get(WorkflowFact.STARTED)
    return DecisionsView(
        applied=len(facts.get(WorkflowFact.APPLIED) or ()),
        failed=len(errors),
        undo_token=facts.get(WorkflowFact.UNDO_TOKEN) or None,
        pending=facts.get(WorkflowFact.PENDING) or 0,
        completed=bool(facts.get(WorkflowFact.COMPLETED)),
        started=StartedStepView.model_validate(started) if isinstance(started, Mapping) else None,
    )


def _all_stale(facts: Mapping[str, Any], errors: Sequence[StepErrorView]) -> bool:
    """True if nothing was decided because all items have changed meanwhile."""
    code = WorkflowError.VERSION_CONFLICT.value
    applied = facts.get(WorkflowFact.APPLIED)
    return bool(errors) and not applied and all(error.code == code for error in errors)


def _token() -> str:
    return os.urandom(4).hex()


_WORDS: Final = {
    WorkflowError.ITEM_NOT_FOUND.value: "there is no such proposal",
    WorkflowError.VERSION_CONFLICT.value: "it has changed meanwhile; read it again",
    WorkflowError.NOT_REVIEWABLE.value: "it was applied already, or is not a proposal",
}
