"""Webhooks: what is on its way; what was given up, listed and set going again."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.contracts.access import TrailAction
from common.contracts.webhooks import LETTER_CURSOR_PREFIX, RedriveStatus
from common.contracts.workflow import Fact, WorkflowError
from common.workflow.types import WorkflowAnswer
from common.workflow.webhook_letters import NEWEST, DeadDelivery, LetterStore
from common.workflow.webhook_reader import Delivery, DeliveryReader
from gateway.state import GatewayState, state_of
from gateway.workflow.answers import Made, answer
from gateway.workflow.asking import validated
from gateway.workflow.envelope import WorkflowProblem
from gateway.workflow.error_view import ErrorItem
from gateway.workflow.keys_once import keyed, replay_of
from gateway.workflow.letter_models import (
    AttemptView,
    DeliveryListView,
    DeliveryView,
    LetterListView,
    LetterView,
    RedriveView,
    RedriveWebhooksRequest,
)
from gateway.workflow.models import PageView
from gateway.workflow.outcomes import check_room
from gateway.workflow.rendering import rfc3339

_SCOPE: Final = "redrive"
#: How long the answer to a redrive may take to be kept.
_CLAIM_MS: Final = 5_000
#: Of many names, so many stand in the trail.
_NAMED: Final = 4
_WORDS: Final = (
    "There is no dead letter of this event; nothing was sent again. It may have made room for "
    "newer ones; the file of WORKFLOW_WEBHOOK_DLQ_PATH may still have it."
)


async def list_letters(state: GatewayState, limit: int, before: str | None, offset: int) -> bytes:
    """A page of letters, the newest first."""
    store = letter_store(state)
    found = await store.letters(offset + limit + 1, before or NEWEST)
    page = found[offset : offset + limit]
    has_more = len(found) > offset + limit
    cursor = f"{LETTER_CURSOR_PREFIX}{page[-1].id}" if has_more else None
    view = LetterListView(
        items=[_view(each) for each in page],
        pagination=PageView(
            count=len(page), has_more=has_more, next_cursor=cursor, total=await store.count()
        ),
    )
    return codec.dumps(view.model_dump(mode="json"))


async def list_deliveries(state: GatewayState, limit: int) -> bytes:
    """What is on its way, or waits to be tried again."""
    reader = DeliveryReader(state.client, state.workflow_reader.keys)
    found = await reader.next(limit)
    view = DeliveryListView(
        items=[_delivery_view(each) for each in found], total=await reader.count()
    )
    return codec.dumps(view.model_dump(mode="json"))


async def redrive(request: Request, body: Any) -> Response:
    """Have events sent again, each once however often it is asked for."""
    wanted = validated(RedriveWebhooksRequest, body)
    state = state_of(request)
    known = keyed(request, body, _SCOPE, _CLAIM_MS)
    await state.access.write_down(request, TrailAction.DLQ_REDRIVE, _target(wanted))
    store = letter_store(state)
    chosen = wanted.event_ids if wanted.event_ids is not None else await store.event_ids()
    chosen = list(dict.fromkeys(chosen))
    outcome = await store.redrive(chosen, known.once)
    while outcome.answer is WorkflowAnswer.MISSING and wanted.event_ids is None:
        # They made room for newer ones since the list was read; of all, those that are left.
        gone = set(outcome.facts.get(Fact.ITEMS.value) or ())
        chosen = [event_id for event_id in chosen if event_id not in gone]
        outcome = await store.redrive(chosen, known.once)
    if outcome.answer is WorkflowAnswer.MISSING:
        raise _no_such_letters(outcome.facts.get(Fact.ITEMS.value) or ())
    check_room(state, outcome)
    replayed = replay_of(outcome)
    if replayed is not None:
        return replayed
    told: dict[str, Any] = {
        "success": True,
        # Lua's empty lists come as objects.
        **{fact.value: list(outcome.facts.get(fact.value) or ()) for fact in _TOLD},
        Fact.ERRORS.value: [],
    }
    return await answer(request, "", known, Made(200, told), outcome)


_TOLD: Final = (Fact.REDRIVEN, Fact.SKIPPED)


def letter_store(state: GatewayState) -> LetterStore:
    """The letters that this gateway sees."""
    return LetterStore(state.client, state.workflows)


def _view(dead: DeadDelivery) -> LetterView:
    letter = dead.letter
    asked = dead.redrive is not RedriveStatus.NONE
    return LetterView(
        event_id=letter.event_id,
        event_type=letter.event_type,
        job_id=letter.job_id,
        url=letter.url,
        failed_at=rfc3339(dead.failed_ms),
        payload=codec.payload_object(letter.body),
        attempts=letter.attempts,
        attempts_detail=_attempts(letter.detail),
        redrive=RedriveView(status=dead.redrive, at=rfc3339(dead.redrive_ms) if asked else None),
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
    """What a worker wrote of its attempts; nothing where a foreign hand wrote something else."""
    try:
        return [AttemptView.model_validate(each) for each in codec.loads(raw)]
    except (TypeError, ValueError):
        return []


def _no_such_letters(event_ids: Any) -> WorkflowProblem:
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
