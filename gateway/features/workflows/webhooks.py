"""`/api/workflow/webhooks`: pending deliveries, and dead letters to list and redrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.requests import Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.contracts.access import AuditAction
from sluice.common.contracts.webhooks import DEAD_LETTER_CURSOR_PREFIX, RedriveStatus
from sluice.common.contracts.workflow.operations import WorkflowFact
from sluice.common.contracts.workflow.statuses import WorkflowError
from sluice.common.features.workflows.reader import ITEMS_PAGE_SIZE
from sluice.common.features.workflows.types import WorkflowAnswer
from sluice.common.features.workflows.webhooks.dead_letters import (
    NEWEST,
    StoredWebhookDeadLetter,
    WebhookDeadLetterStore,
)
from sluice.common.features.workflows.webhooks.store import Delivery, DeliveryCursor, DeliveryReader
from sluice.gateway.features.workflows import rendering
from sluice.gateway.features.workflows.idempotency import (
    HttpAnswer,
    find_replay,
    identify_request,
    send_answer,
)
from sluice.gateway.features.workflows.lookup import (
    WorkflowProblem,
    WorkflowServices,
    check_admission,
    workflows_of,
)
from sluice.gateway.features.workflows.models.responses import PageView
from sluice.gateway.features.workflows.openapi import BAD_REQUEST, IDEMPOTENT
from sluice.gateway.features.workflows.rendering import Cursor, Limit, Offset, rfc3339
from sluice.gateway.http import paths
from sluice.gateway.http.body import parse_body
from sluice.gateway.http.error_formats import ErrorItem
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.routing import JsonRoute, RawJsonBody
from sluice.gateway.state import GatewayState, state_of

#: Most dead letters that one request may name.
MOST_NAMED = 1_000
_EVENT_ID = "wf_20260214_001:step.completed:ab12cd34"


class AttemptView(BaseModel):
    """A delivery attempt."""

    model_config = ConfigDict(extra="ignore")

    attempt: int = Field(0, examples=[1])
    status: int | None = Field(
        None, description="HTTP status of the response; null if there was none.", examples=[503]
    )
    error: str = Field("", examples=["HTTP 503"])
    retryable: bool = Field(False, description="Whether a retry might have succeeded.")
    at: str = Field("", examples=["2026-02-14T15:40:00Z"])


class RedriveView(BaseModel):
    """State of a redrive."""

    status: RedriveStatus = Field(description="`none` if it was not requested.")
    at: str | None = Field(examples=["2026-02-14T16:00:00Z"])


class DeadWebhookView(BaseModel):
    """An event that could not be delivered."""

    event_id: str = Field(examples=[_EVENT_ID])
    event_type: str = Field(examples=["step.completed"])
    job_id: str = Field(examples=["wf_20260214_001"])
    url: str = Field(examples=["https://example.com/callback"])
    failed_at: str = Field(examples=["2026-02-14T15:45:00Z"])
    payload: Any = Field(description="The body that was sent.")
    attempts: int = Field(examples=[6])
    attempts_detail: list[AttemptView]
    redrive: RedriveView


class DeliveryView(BaseModel):
    """A webhook with events to deliver."""

    job_id: str = Field(examples=["wf_20260214_001"])
    event_id: str | None = Field(
        description="Event of a redriven dead letter; null for the events of a job."
    )
    url: str = Field(examples=["https://example.com/callback"])
    next_at: str = Field(
        description="Time of the next attempt; during an attempt, its timeout.",
        examples=["2026-02-14T15:45:00Z"],
    )
    under_way: bool = Field(description="Whether an attempt is running.")
    waiting: int = Field(description="Number of events to deliver.", examples=[3])
    attempts: int = Field(description="Attempts for the first event.", examples=[2])
    last: AttemptView | None = Field(description="The last attempt.")


class DeliveryListView(BaseModel):
    """A page of pending deliveries, those due first come first."""

    success: bool = Field(True, examples=[True])
    items: list[DeliveryView]
    total: int = Field(description="Number of all deliveries.", examples=[3])
    pagination: PageView


class DeadWebhookListView(BaseModel):
    """A page of undelivered events, newest first."""

    success: bool = Field(True, examples=[True])
    items: list[DeadWebhookView]
    pagination: PageView


class RedriveWebhooksRequest(BaseModel):
    """Which events to send again."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"event_ids": [_EVENT_ID]}]}
    )

    event_ids: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=256)]],
            Field(min_length=1, max_length=MOST_NAMED),
        ]
        | None
    ) = Field(None, description="These events. Give exactly one of `event_ids` and `all`.")
    all: bool = Field(False, strict=True, description="All events that were not redriven yet.")
    idempotency_key: str | None = Field(
        None, description="Same as the header `Idempotency-Key`: 1 to 255 printable characters."
    )

    @model_validator(mode="after")
    def _one_choice(self) -> RedriveWebhooksRequest:
        if (self.event_ids is not None) == self.all:
            raise PydanticCustomError("one_choice", "Give exactly one of event_ids and all")
        return self


class RedriveWebhooksResponse(BaseModel):
    """Result of a redrive."""

    success: bool = Field(True, examples=[True])
    redriven: list[str] = Field(
        description="Events that will be sent again.", examples=[[_EVENT_ID]]
    )
    skipped: list[str] = Field(
        description="Events that were delivered meanwhile, or are being sent.", examples=[[]]
    )
    errors: list[ErrorItem] = Field(default_factory=list)


_AWAY = "Redis does not answer."

LIST: dict[str, Any] = {
    "responses": problem_responses(
        _400="The cursor is not valid for this list, or is combined with an offset.",
        _422="Invalid query parameter.",
        _503=_AWAY,
    )
}
REDRIVE: dict[str, Any] = {
    "responses": problem_responses(
        _400=BAD_REQUEST,
        _404="Some of the events have no dead letter; nothing was redriven.",
        _409="The first request with this Idempotency-Key is still being processed.",
        _422="The body does not match the schema, or the Idempotency-Key was used with "
        "another request.",
        _503=_AWAY,
    ),
    "dependencies": IDEMPOTENT,
}
RedriveBody = Annotated[
    Any, Depends(RawJsonBody(RedriveWebhooksRequest, {"event_ids": [_EVENT_ID]}))
]


_SCOPE: Final = "redrive"
#: How long the response to a redrive may take; until then a repeated request gets 409.
_CLAIM_MS: Final = 5_000
#: Most event ids in an entry of the audit log.
_NAMED: Final = 4
_WORDS: Final = (
    "There is no dead letter of this event; nothing was redriven. It may have been trimmed; the "
    "file in WORKFLOW_WEBHOOK_DLQ_PATH may still have it."
)


async def dead_webhooks_page(
    state: GatewayState,
    workflows: WorkflowServices,
    limit: int,
    before: str | None,
    offset: int,
) -> bytes:
    """A page of dead letters, newest first."""
    store = dead_letter_store(state, workflows)
    found = await store.list_dead_letters(offset + limit + 1, before or NEWEST)
    page = found[offset : offset + limit]
    has_more = len(found) > offset + limit
    cursor = f"{DEAD_LETTER_CURSOR_PREFIX}{page[-1].id}" if has_more else None
    view = DeadWebhookListView(
        items=[_view(each) for each in page],
        pagination=PageView(
            count=len(page), has_more=has_more, next_cursor=cursor, total=await store.count()
        ),
    )
    return codec.dumps(view.model_dump(mode="json"))


async def deliveries_page(
    state: GatewayState,
    workflows: WorkflowServices,
    limit: int,
    after: DeliveryCursor | None,
    offset: int,
) -> bytes:
    """A page of pending deliveries."""
    reader = DeliveryReader(state.client, workflows.reader.keys)
    found = await reader.next_due(limit + 1, after, offset)
    page, has_more, total = found[:limit], len(found) > limit, await reader.count()
    view = DeliveryListView(
        items=[_delivery_view(each) for each in page],
        total=total,
        pagination=PageView(
            count=len(page),
            has_more=has_more,
            next_cursor=rendering.delivery_cursor(_end_of(page, after)) if has_more else None,
            total=total,
        ),
    )
    return codec.dumps(view.model_dump(mode="json"))


def _end_of(page: Sequence[Delivery], after: DeliveryCursor | None) -> DeliveryCursor:
    due_ms = page[-1].due_ms
    count = sum(each.due_ms == due_ms for each in page)
    if after is not None and after.due_ms == due_ms:
        count += after.skip
    return DeliveryCursor(due_ms, count)


async def redrive(request: Request, body: Any) -> Response:
    """Send events again; idempotent."""
    wanted = parse_body(RedriveWebhooksRequest, body)
    state = state_of(request)
    known = identify_request(request, body, _SCOPE, _CLAIM_MS)
    await state.access.record(request, AuditAction.DLQ_REDRIVE, _target(wanted))
    store = dead_letter_store(state, workflows_of(request))
    chosen = wanted.event_ids if wanted.event_ids is not None else await store.event_ids()
    chosen = list(dict.fromkeys(chosen))
    outcome = await store.redrive(chosen, known.once)
    while outcome.answer is WorkflowAnswer.MISSING and wanted.event_ids is None:
        # Some were trimmed since the list was read; `all` means the remaining ones.
        gone = set(outcome.facts.get(WorkflowFact.ITEMS) or ())
        chosen = [event_id for event_id in chosen if event_id not in gone]
        outcome = await store.redrive(chosen, known.once)
    if outcome.answer is WorkflowAnswer.MISSING:
        raise _dead_letters_not_found(outcome.facts.get(WorkflowFact.ITEMS) or ())
    check_admission(state, outcome)
    replayed = find_replay(outcome)
    if replayed is not None:
        return replayed
    answer: dict[str, Any] = {
        "success": True,
        # Empty lists of Lua are encoded as objects.
        **{fact: list(outcome.facts.get(fact) or ()) for fact in _REDRIVE_FACTS},
        WorkflowFact.ERRORS: [],
    }
    return await send_answer(request, "", known, HttpAnswer(200, answer), outcome)


_REDRIVE_FACTS: Final = (WorkflowFact.REDRIVEN, WorkflowFact.SKIPPED)


def dead_letter_store(state: GatewayState, workflows: WorkflowServices) -> WebhookDeadLetterStore:
    return WebhookDeadLetterStore(state.client, workflows.store)


def _view(dead: StoredWebhookDeadLetter) -> DeadWebhookView:
    letter = dead.dead_letter
    requested = dead.redrive is not RedriveStatus.NONE
    return DeadWebhookView(
        event_id=letter.event_id,
        event_type=letter.event_type,
        job_id=letter.job_id,
        url=letter.url,
        failed_at=rfc3339(dead.failed_ms),
        payload=codec.parse_payload(letter.body),
        attempts=letter.attempts,
        attempts_detail=_attempts(letter.detail),
        redrive=RedriveView(
            status=dead.redrive, at=rfc3339(dead.redrive_ms) if requested else None
        ),
    )


def _delivery_view(delivery: Delivery) -> DeliveryView:
    last = _attempts(b"[%s]" % delivery.last)
    return DeliveryView(
        job_id=delivery.job_id,
        event_id=delivery.event_id or None,
        url=delivery.url,
        next_at=rfc3339(delivery.due_ms),
        under_way=delivery.under_way,
        waiting=delivery.waiting,
        attempts=delivery.attempts,
        last=last[0] if last else None,
    )


def _attempts(raw: bytes) -> list[AttemptView]:
    """The recorded attempts; empty for an invalid value."""
    try:
        return [AttemptView.model_validate(each) for each in codec.loads(raw)]
    except (TypeError, ValueError):
        return []


def _dead_letters_not_found(event_ids: Any) -> WorkflowProblem:
    first, *others = [str(each) for each in event_ids] or [""]
    code = WorkflowError.LETTER_NOT_FOUND
    more = [ErrorItem(code=code.value, message=_WORDS, item_id=each) for each in others]
    return WorkflowProblem(404, code, _WORDS, item_id=first or None, more=more)


def _target(wanted: RedriveWebhooksRequest) -> str:
    if wanted.event_ids is None:
        return "webhooks, all"
    rest = len(wanted.event_ids) - _NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return f"webhooks, {','.join(wanted.event_ids[:_NAMED])}{more}"


_JSON = "application/json"

router = APIRouter(route_class=JsonRoute, tags=["webhooks"])


@router.get(
    paths.WORKFLOW_DELIVERIES,
    response_model=DeliveryListView,
    summary="List webhook deliveries",
    **LIST,
)
async def list_webhook_deliveries(
    request: Request, limit: Limit = ITEMS_PAGE_SIZE, offset: Offset = 0, cursor: Cursor = None
) -> Response:
    """Returns webhooks with events to deliver: being sent, or waiting for the next attempt."""
    after = rendering.after_delivery(cursor, offset)
    page = await deliveries_page(state_of(request), workflows_of(request), limit, after, offset)
    return Response(page, 200, media_type=_JSON)


@router.get(
    paths.WORKFLOW_DEAD_WEBHOOKS,
    response_model=DeadWebhookListView,
    summary="List webhook dead letters",
    **LIST,
)
async def list_webhook_dead_letters(
    request: Request, limit: Limit = ITEMS_PAGE_SIZE, offset: Offset = 0, cursor: Cursor = None
) -> Response:
    """Returns events that could not be delivered, newest first."""
    before = rendering.before_dead_letter(cursor, offset)
    page = await dead_webhooks_page(state_of(request), workflows_of(request), limit, before, offset)
    return Response(page, 200, media_type=_JSON)


@router.post(
    paths.WORKFLOW_REDRIVE_WEBHOOKS,
    response_model=RedriveWebhooksResponse,
    summary="Redrive webhook dead letters",
    **REDRIVE,
)
async def redrive_webhook_dead_letters(request: Request, body: RedriveBody) -> Response:
    """Sends events again, byte for byte. Events that were delivered meanwhile are skipped."""
    return await redrive(request, body)
