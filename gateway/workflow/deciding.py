"""Deciding on proposals: through the review step, or many at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.contracts.workflow import (
    MOST_ITEMS,
    Fact,
    Selection,
    StepKind,
    StepStatus,
    WorkflowError,
)
from common.workflow.definition import StepDefinition
from common.workflow.records import ItemPage, Page, WorkflowJob
from common.workflow.types import Decide, Decision, Outcome
from gateway.callers import caller_of
from gateway.state import state_of
from gateway.workflow import rendering
from gateway.workflow.action_models import BulkRequest, DecisionWish, ReviewPayload
from gateway.workflow.action_views import DecidedView, DecisionsView, StartedView, dumped
from gateway.workflow.answers import Made, answer, check_refused, repeated
from gateway.workflow.asking import item_id_of, validated
from gateway.workflow.envelope import WorkflowProblem, invalid_field, no_such_job
from gateway.workflow.keys_once import Keyed, keyed, replay_of
from gateway.workflow.lookup import find_job, may_read
from gateway.workflow.models import StepErrorView
from gateway.workflow.outcomes import admission_of, admitted, check_task, new_ids
from gateway.workflow.waiting import MARGIN_MS

#: Changed items that an answer shows; it always says how many there are.
SHOWN: Final = 500
#: A page without anything.
NOTHING: Final = ItemPage((), Page(0, False, 0, 0))


async def bulk(request: Request, body: Any) -> Response:
    """One action for many proposals."""
    wanted = validated(BulkRequest, body)
    job = await find_job(request)
    check_task(caller_of(request))
    step = proposing_step(job)
    known = keyed(request, body, f"bulk:{job.job_id}", MARGIN_MS)
    outcome = await _decide(request, job, _bulk_decide(request, job, step, wanted), known)
    if outcome.replayed and outcome.status_code:
        return repeated(job.job_id, outcome.status_code, outcome.body)
    made = await _decided(request, job, step, outcome)
    return await answer(request, job.job_id, known, made, outcome)


async def _decided(
    request: Request, job: WorkflowJob, step: StepDefinition, outcome: Outcome
) -> Made:
    """What became of the items; a refusal where all of them have changed meanwhile."""
    facts, errors = outcome.facts, errors_of(outcome.facts)
    ids = [str(item_id) for item_id in facts.get(Fact.APPLIED.value) or ()]
    conflicts = _all_stale(facts, errors)
    if conflicts:
        ids = [str(error.item_id) for error in errors]
    shown = ids[:SHOWN] if may_read(request) else []
    items = await state_of(request).workflow_reader.named(job.job_id, shown)
    told = dumped(
        DecidedView(
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
    return Made(409 if conflicts else 200, told)


async def review(
    request: Request, job: WorkflowJob, step: StepDefinition, payload: ReviewPayload, known: Keyed
) -> Response:
    """Decisions through the review step, which ends with the last of them."""
    proposing = job.definition.step(step.reviews)
    assert proposing is not None
    decisions = _decisions(proposing, payload.decisions)
    wanted = Decide(
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
        return repeated(job.job_id, outcome.status_code, outcome.body)
    facts, errors = outcome.facts, errors_of(outcome.facts)
    if _all_stale(facts, errors):
        made = await _decided(request, job, step, outcome)
    else:
        made = await _reviewed(request, job, step, outcome)
    if outcome.status_code:  # kept already, maybe with what this client may not see
        return repeated(job.job_id, made.status, codec.dumps(made.body))
    return await answer(request, job.job_id, known, made, outcome)


async def _reviewed(
    request: Request, job: WorkflowJob, step: StepDefinition, outcome: Outcome
) -> Made:
    """How the review stands; what it came to only for those who may read that."""
    reader = state_of(request).workflow_reader
    found = await reader.snapshot(job.job_id)
    if found is None:
        raise no_such_job()
    facts, errors = outcome.facts, errors_of(outcome.facts)
    record = found.steps[step.name]
    completed = bool(facts.get(Fact.COMPLETED.value)) or record.status is StepStatus.COMPLETE
    shown = completed and may_read(request)
    summary = None
    if not completed:
        pending = facts.get(Fact.PENDING.value, found.proposed)
        summary = f"Step '{step.name}' waits for decisions on {pending} items"
    told = rendering.execution(
        found,
        step.name,
        record.execution or None,
        await reader.items(job.job_id, step.name) if shown else NOTHING,
        summary=summary,
        success=not errors,
        errors=errors,
    )
    told |= dumped(_decisions_view(facts, errors))
    return Made(200 if shown else 202, told)


async def _decide(request: Request, job: WorkflowJob, wanted: Decide, known: Keyed) -> Outcome:
    state = state_of(request)
    workflows = state.workflows
    ids, admission = new_ids(state, job.tail), admission_of(request)
    outcome = await admitted(request, lambda: workflows.decide(wanted, known.once, ids, admission))
    check_refused(outcome)
    if not outcome.status_code:
        replay_of(outcome)
    return outcome


def _bulk_decide(
    request: Request, job: WorkflowJob, step: StepDefinition, wanted: BulkRequest
) -> Decide:
    chosen = Selection.ALL if wanted.all else Selection.FILTERED
    decisions: list[Decision] = []
    if wanted.proposal_ids is not None:
        chosen = Selection.SELECTED
        ids = list(dict.fromkeys(item_id_of(step, name) for name in wanted.proposal_ids))
        versions = {item_id_of(step, name): number for name, number in wanted.versions.items()}
        if unnamed := versions.keys() - set(ids):
            raise invalid_field("versions", f"{min(unnamed)} is not among proposal_ids")
        # The note is the operation's: it is written down once, not with each of them.
        decisions = [Decision(item_id, wanted.action, versions.get(item_id, 0)) for item_id in ids]
    narrowed = wanted.filter
    return Decide(
        job.job_id,
        caller_of(request).who,
        decisions,
        action=None if decisions else wanted.action,
        status=None if narrowed is None else narrowed.status,
        min_confidence=None if narrowed is None else narrowed.min_confidence,
        note=wanted.note,
        operation=f"{wanted.action.value}_{chosen.value}",
        token=_token(),
        step=step.name,
    )


def _decisions(step: StepDefinition, wishes: Sequence[DecisionWish]) -> list[Decision]:
    found: dict[str, Decision] = {}
    for index, wish in enumerate(wishes):
        item_id = item_id_of(step, wish.id)
        if item_id in found:
            raise invalid_field(f"payload.decisions[{index}].id", f"{item_id} comes twice")
        found[item_id] = Decision(item_id, wish.action, wish.version or 0, wish.note)
    return list(found.values())


def proposing_step(job: WorkflowJob) -> StepDefinition:
    """The step whose items are decided on: that of the review that waits, or else the last one
    that has items."""
    steps = [step for step in job.definition.steps if step.proposes]
    if not steps:
        raise WorkflowProblem(
            409,
            WorkflowError.NOT_REVIEWABLE,
            f"No step of workflow '{job.definition.name}' makes proposals.",
        )
    for step in job.definition.steps:
        if step.kind is StepKind.REVIEW and job.step(step).status is StepStatus.WAITING_INPUT:
            return next(each for each in steps if each.name == step.reviews)
    complete = [step for step in steps if job.step(step).status is StepStatus.COMPLETE]
    return complete[-1] if complete else steps[0]


def errors_of(facts: Mapping[str, Any]) -> list[StepErrorView]:
    """What was not decided, one by one."""
    found = []
    for failed in list(facts.get(Fact.FAILED.value) or ())[:MOST_ITEMS]:
        code = str(failed.get(Fact.CODE.value))
        more = {
            name: failed[name]
            for name in (Fact.VERSION.value, Fact.STATUS.value)
            if failed.get(name) is not None
        }
        words = _WORDS.get(code, "it cannot be decided on now")
        item_id = str(failed.get(Fact.ID.value))
        found.append(
            StepErrorView(code=code, message=f"{item_id}: {words}", item_id=item_id, **more)
        )
    return found


def _decisions_view(facts: Mapping[str, Any], errors: Sequence[StepErrorView]) -> DecisionsView:
    started = facts.get(Fact.STARTED.value)
    return DecisionsView(
        applied=len(facts.get(Fact.APPLIED.value) or ()),
        failed=len(errors),
        undo_token=facts.get(Fact.UNDO_TOKEN.value) or None,
        pending=facts.get(Fact.PENDING.value) or 0,
        completed=bool(facts.get(Fact.COMPLETED.value)),
        started=StartedView.model_validate(started) if isinstance(started, Mapping) else None,
    )


def _all_stale(facts: Mapping[str, Any], errors: Sequence[StepErrorView]) -> bool:
    """Whether nothing was decided, and that only because all have changed meanwhile."""
    code = WorkflowError.VERSION_CONFLICT.value
    applied = facts.get(Fact.APPLIED.value)
    return bool(errors) and not applied and all(error.code == code for error in errors)


def _token() -> str:
    return os.urandom(4).hex()


_WORDS: Final = {
    WorkflowError.ITEM_NOT_FOUND.value: "there is no such proposal",
    WorkflowError.VERSION_CONFLICT.value: "it has changed meanwhile; read it again",
    WorkflowError.NOT_REVIEWABLE.value: "it was applied already, or is no proposal",
}
