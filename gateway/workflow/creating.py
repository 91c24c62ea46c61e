"""A request's way to a workflow job: checked, made once, answered alike however often it comes."""

from __future__ import annotations

import time
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from common import codec, logs
from common.contracts.workflow import (
    DELIVERED,
    SOURCES_STEP,
    Fact,
    StepKind,
    WorkflowError,
)
from common.webhook_hosts import WebhookRefused, check_url
from common.workflow.definition import ReviewOptions, WorkflowDefinition
from common.workflow.types import NewWorkflow, Outcome, Webhook
from gateway.callers import caller_of
from gateway.problems import MOST_NAME_CHARS
from gateway.state import GatewayState, state_of
from gateway.workflow import answers, outcomes, rendering
from gateway.workflow.asking import validated
from gateway.workflow.create_request import CreateWorkflowRequest
from gateway.workflow.envelope import WorkflowProblem, invalid_field, no_such_job
from gateway.workflow.keys_once import REPLAYED, Keyed, keyed, replay_of
from gateway.workflow.lookup import may_see
from gateway.workflow.paths import place_of
from gateway.workflow.step_options import checked_options

_JSON: Final = "application/json"
_SCOPE: Final = "create"
#: How long an answer may take to be made; whoever repeats the request meanwhile is to come back.
CLAIM_MS: Final = 5_000


async def create(request: Request, body: Any) -> Response:
    """The answer to a request for a workflow job."""
    state, caller = state_of(request), caller_of(request)
    outcomes.check_task(caller)
    by_key = keyed(request, body, _SCOPE, CLAIM_MS)
    new = await _new(request, body, by_key)
    await outcomes.check_pressure(request, by_key.once)
    ids, admission = outcomes.new_ids(state, caller.tail), outcomes.admission_of(request)
    outcome = await outcomes.admitted(
        request, lambda: state.workflows.create(new, by_key.once, ids, admission)
    )
    job_id = str(outcome.facts.get(Fact.JOB_ID.value, ""))
    logs.job_id.set(job_id)
    answer = replay_of(outcome) or await _answer(request, job_id, by_key, outcome)
    answer.headers["Location"] = place_of(job_id)
    return answer


async def _answer(request: Request, job_id: str, by_key: Keyed, outcome: Outcome) -> Response:
    """The job as it is now; kept, so that repetitions hear the same."""
    job = await state_of(request).workflow_reader.snapshot(job_id)
    if job is None or not may_see(caller_of(request), job):
        raise no_such_job()
    body = codec.dumps(rendering.job_status(job))
    await answers.remember(request, by_key, 200, body)
    headers = {REPLAYED: "true"} if outcome.replayed else {}
    return Response(body, 200, headers, _JSON)


async def _new(request: Request, body: Any, by_key: Keyed) -> NewWorkflow:
    """Everything checked that can be checked before it is made."""
    state, caller = state_of(request), caller_of(request)
    wanted = validated(CreateWorkflowRequest, body)
    definition = await _definition(state, wanted.workflow)
    return NewWorkflow(
        definition=definition,
        date=time.strftime("%Y%m%d", time.gmtime()),
        ttl_s=state.settings.workflow_ttl_s,
        idempotency_key=by_key.key or "",
        tenant=caller.tenant,
        tail=caller.tail,
        metadata=codec.dumps(wanted.metadata),
        namespace=wanted.namespace,
        review=_review(definition, wanted, state.settings.workflow_ttl_s),
        auto_advance=wanted.auto_advance,
        webhook=_webhook(state, wanted),
        options=_options(state, definition, wanted),
    )


async def _definition(state: GatewayState, name: str) -> WorkflowDefinition:
    definition = await state.known_workflows.find(name)
    if definition is None:
        known = ", ".join(state.known_workflows.names())
        raise WorkflowProblem(
            422,
            WorkflowError.UNKNOWN_WORKFLOW,
            f"There is no such workflow. Known ones: {known}. Workers declare theirs when they "
            "start.",
            "workflow",
        )
    return definition


def _review(
    definition: WorkflowDefinition, wanted: CreateWorkflowRequest, ttl_s: int
) -> ReviewOptions:
    if wanted.review is None:
        return ReviewOptions()
    if not any(step.kind is StepKind.REVIEW for step in definition.steps):
        raise invalid_field("review", f"workflow {definition.name} has no review")
    if wanted.review.timeout_s is not None and wanted.review.timeout_s >= ttl_s:
        # It would be gone before its time is up, and nobody would hear of it.
        raise invalid_field(
            "review.timeout_s",
            f"it must be less than {ttl_s}: jobs are kept so long (WORKFLOW_TTL_S)",
        )
    return wanted.review.options()


def _webhook(state: GatewayState, wanted: CreateWorkflowRequest) -> Webhook | None:
    if wanted.webhook is not None:
        url, member, events = wanted.webhook.url, "webhook.url", wanted.webhook.events
    elif wanted.webhook_url is not None:
        url, member, events = wanted.webhook_url, "webhook_url", None
    else:
        return None
    try:
        check_url(url, state.webhook_hosts)
    except WebhookRefused as error:
        raise invalid_field(member, str(error)) from None
    kinds = DELIVERED if events is None else dict.fromkeys(events)
    return Webhook(url, tuple(kind.value for kind in kinds))


def _options(
    state: GatewayState, definition: WorkflowDefinition, wanted: CreateWorkflowRequest
) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, options in wanted.steps.items():
        step, member = definition.step(name), f"steps.{name[:MOST_NAME_CHARS]}"
        if step is None:
            known = ", ".join(each.name for each in definition.steps)
            raise WorkflowProblem(
                422,
                WorkflowError.UNKNOWN_STEP,
                f"Workflow {definition.name} has no such step. Its steps: {known}.",
                member,
            )
        if step.kind is StepKind.REVIEW:
            raise invalid_field(member, "a review has no options here; see `review`")
        if name != SOURCES_STEP or wanted.sources is None:
            found[name] = checked_options(step, options, member)
    if wanted.sources is not None:
        found[SOURCES_STEP] = _sources(definition, wanted)
    size = sum(len(options) for options in found.values())
    if size > state.settings.max_document_bytes:
        raise WorkflowProblem(
            413,
            WorkflowError.TOO_LARGE,
            f"The options have {size} bytes of JSON; {state.settings.max_document_bytes} are "
            "allowed (MAX_DOCUMENT_BYTES).",
        )
    return found


def _sources(definition: WorkflowDefinition, wanted: CreateWorkflowRequest) -> bytes:
    """The options of the step that takes them."""
    step = definition.step(SOURCES_STEP)
    if step is None or step.kind is StepKind.REVIEW:
        raise invalid_field(SOURCES_STEP, f"workflow {definition.name} takes no sources")
    others = wanted.steps.get(SOURCES_STEP, {})
    if SOURCES_STEP in others:
        raise invalid_field(SOURCES_STEP, f"they are given in `steps.{SOURCES_STEP}` as well")
    member = f"steps.{SOURCES_STEP}" if others else ""
    return checked_options(step, {**others, SOURCES_STEP: wanted.sources}, member)
