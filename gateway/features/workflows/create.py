"""Creates workflow jobs: validates the request and its step options, idempotent by key."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.contracts.workflow.operations import WorkflowFact
from sluice.common.contracts.workflow.statuses import (
    DEFAULT_WEBHOOK_EVENTS,
    SOURCES_STEP,
    StepKind,
    WorkflowError,
)
from sluice.common.features.workflows import memory_first
from sluice.common.features.workflows.catalog import WorkflowCatalog
from sluice.common.features.workflows.definitions import (
    ReviewOptions,
    StepDefinition,
    WorkflowDefinition,
)
from sluice.common.features.workflows.types import NewWorkflow, Webhook, WorkflowOutcome
from sluice.common.features.workflows.webhooks.hosts import AllowedHosts, WebhookRefused, check_url
from sluice.common.json_schema import MOST_CHARS, InvalidSchema, Schema, SchemaViolation
from sluice.common.observability import logs
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.features.workflows import idempotency, lookup, rendering
from sluice.gateway.features.workflows.idempotency import (
    IdempotentRequest,
    find_replay,
    identify_request,
)
from sluice.gateway.features.workflows.lookup import (
    WorkflowProblem,
    invalid_field,
    job_not_found,
    may_see,
    workflows_of,
)
from sluice.gateway.features.workflows.models.requests import CreateWorkflowRequest
from sluice.gateway.http.body import parse_body
from sluice.gateway.http.error_formats import ErrorItem, member_path
from sluice.gateway.http.headers import REPLAYED_HEADERS
from sluice.gateway.http.paths import workflow_status_url
from sluice.gateway.http.problems import MOST_NAME_CHARS
from sluice.gateway.jobs.admission import admission_of
from sluice.gateway.state import GatewayState, state_of

#: Most members and elements in the options of a step: they are validated on the event loop.
MOST_PARTS: Final = 20_000
#: The same for a schema with keywords that visit parts several times, or pairs of them.
MOST_COSTLY_PARTS: Final = 500
COSTLY: Final = frozenset(
    (
        *("pattern", "patternProperties", "propertyNames", "uniqueItems", "contains"),
        *("$ref", "$dynamicRef", "$recursiveRef", "anyOf", "oneOf", "allOf", "not", "if"),
        *("dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties"),
    )
)
#: Longest schema of a step.
MOST_SCHEMA_BYTES: Final = 64 * 1024
#: Characters at the end of a long message: the error follows the value.
_TAIL: Final = 200


def validate_options(step: StepDefinition, options: Any, member: str) -> bytes:
    """The options of a step as JSON; raises a 422 that names the invalid members.

    `member`: the member of the request that has them; empty for the request itself.
    """
    if not isinstance(options, dict):
        raise _refused(member, [SchemaViolation("", "Input should be an object")])
    declared = None
    if step.options_schema is not None:
        declared = _compile_schema(codec.dumps(step.options_schema))
    most = MOST_PARTS if declared is None else declared.most_parts
    if _too_many(options, most):
        raise _refused(member, [SchemaViolation("", f"more than {most} members and elements")])
    if declared is not None:
        if declared.schema is None:
            fault = SchemaViolation(
                "", f"the schema that the step declares is not usable: {declared.trouble}"
            )
            raise _refused(member, [fault])
        if faults := declared.schema.find_violations(options, closely=True):
            raise _refused(member, faults)
    return codec.dumps(options)


class _OptionsSchema(NamedTuple):
    """The compiled schema of a step. `schema`: None if it is not usable, with the reason."""

    schema: Schema | None
    most_parts: int = MOST_PARTS
    trouble: str = ""


@lru_cache(maxsize=256)
def _compile_schema(raw: bytes) -> _OptionsSchema:
    if len(raw) > MOST_SCHEMA_BYTES:
        trouble = f"the schema has {len(raw)} bytes, {MOST_SCHEMA_BYTES} at most"
        return _OptionsSchema(None, trouble=trouble)
    value = codec.loads(raw)
    try:
        schema = Schema(value)
    except InvalidSchema as error:
        return _OptionsSchema(None, trouble=str(error))
    # Validation by the built-in schemas takes linear time.
    costly = raw not in _BUILTIN_SCHEMAS and _is_costly(value)
    return _OptionsSchema(schema, MOST_COSTLY_PARTS if costly else MOST_PARTS)


def _is_costly(schema: Any) -> bool:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if not COSTLY.isdisjoint(part):
                return True
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return False


_BUILTIN_SCHEMAS: Final = {
    codec.dumps(step.options_schema) for step in memory_first.DEFINITION.steps
}


def _too_many(options: dict[str, Any], most: int) -> bool:
    """True if there are more than `most` members and elements; counted without recursion."""
    level: list[Any] = [options]
    count = 0
    while level and count <= most:
        inner: list[Any] = []
        for part in level:
            children = part.values() if isinstance(part, dict) else part
            count += len(children)
            if count > most:
                return True
            inner += [child for child in children if isinstance(child, (dict, list))]
        level = inner
    return False


def _refused(member: str, faults: list[SchemaViolation]) -> WorkflowProblem:
    items = [
        ErrorItem(
            code=WorkflowError.INVALID.value,
            message=_short(fault.message),
            field=_member_path(member, fault.pointer),
        )
        for fault in faults
    ]
    first, *more = items
    message = f"{first.field}: {first.message}"
    return WorkflowProblem(422, WorkflowError.INVALID, message, first.field, more=more)


def _member_path(member: str, pointer: str) -> str:
    inside = member_path(pointer[:MOST_CHARS])
    if inside is None or not member:
        return inside or member
    return f"{member}{inside}" if inside.startswith("[") else f"{member}.{inside}"


def _short(message: str) -> str:
    return message if len(message) <= MOST_CHARS else f"…{message[-_TAIL:]}"


_JSON: Final = "application/json"
_SCOPE: Final = "create"
#: How long the response may take; until then a repeated request gets 409.
CLAIM_MS: Final = 5_000


async def create(request: Request, body: Any) -> Response:
    """Create a workflow job."""
    state, caller = state_of(request), caller_of(request)
    lookup.check_task(caller)
    by_key = identify_request(request, body, _SCOPE, CLAIM_MS)
    new = await _new(request, body, by_key)
    await lookup.check_pressure(request, by_key.once)
    ids, admission = lookup.new_ids(state, caller.tail), admission_of(request)
    outcome = await lookup.call_with_admission(
        request, lambda: workflows_of(request).store.create(new, by_key.once, ids, admission)
    )
    job_id = str(outcome.facts.get(WorkflowFact.JOB_ID, ""))
    logs.job_id.set(job_id)
    answer = find_replay(outcome) or await _answer(request, job_id, by_key, outcome)
    answer.headers["Location"] = workflow_status_url(job_id)
    return answer


async def _answer(
    request: Request, job_id: str, by_key: IdempotentRequest, outcome: WorkflowOutcome
) -> Response:
    """The response with the job, stored for repeated requests."""
    job = await workflows_of(request).reader.snapshot(job_id)
    if job is None or not may_see(caller_of(request), job):
        raise job_not_found()
    body = codec.dumps(rendering.job_status(job))
    await idempotency.keep_answer(request, by_key, 200, body)
    headers = REPLAYED_HEADERS if outcome.replayed else {}
    return Response(body, 200, headers, _JSON)


async def _new(request: Request, body: Any, by_key: IdempotentRequest) -> NewWorkflow:
    """Check everything that can be checked before the job is created."""
    state, caller = state_of(request), caller_of(request)
    wanted = parse_body(CreateWorkflowRequest, body)
    definition = await _definition(workflows_of(request).catalog, wanted.workflow)
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
        webhook=_webhook(workflows_of(request).webhook_hosts, wanted),
        options=_options(state, definition, wanted),
    )


async def _definition(catalog: WorkflowCatalog, name: str) -> WorkflowDefinition:
    definition = await catalog.find(name)
    if definition is None:
        known = ", ".join(catalog.names())
        raise WorkflowProblem(
            422,
            WorkflowError.UNKNOWN_WORKFLOW,
            f"There is no such workflow. Available: {known}. Workers declare theirs when they "
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
        # The job would expire before the timeout.
        raise invalid_field(
            "review.timeout_s",
            f"it must be less than {ttl_s}, the lifetime of jobs (WORKFLOW_TTL_S)",
        )
    return wanted.review.options()


def _webhook(allowed: AllowedHosts, wanted: CreateWorkflowRequest) -> Webhook | None:
    if wanted.webhook is not None:
        url, member, events = wanted.webhook.url, "webhook.url", wanted.webhook.events
    elif wanted.webhook_url is not None:
        url, member, events = wanted.webhook_url, "webhook_url", None
    else:
        return None
    try:
        check_url(url, allowed)
    except WebhookRefused as error:
        raise invalid_field(member, str(error)) from None
    kinds = DEFAULT_WEBHOOK_EVENTS if events is None else dict.fromkeys(events)
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
            found[name] = validate_options(step, options, member)
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
    """The options of the step `sources`."""
    step = definition.step(SOURCES_STEP)
    if step is None or step.kind is StepKind.REVIEW:
        raise invalid_field(
            SOURCES_STEP, f"workflow {definition.name} has no step that takes sources"
        )
    others = wanted.steps.get(SOURCES_STEP, {})
    if SOURCES_STEP in others:
        raise invalid_field(SOURCES_STEP, f"they are also given in `steps.{SOURCES_STEP}`")
    member = f"steps.{SOURCES_STEP}" if others else ""
    return validate_options(step, {**others, SOURCES_STEP: wanted.sources}, member)
