"""`/v1/dlq`: reading and forgetting dead letters."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.contracts.access import TrailAction
from common.contracts.jobs import DeadReason
from gateway import dead_letters
from gateway.dead_letters import no_such_letter
from gateway.dlq_models import (
    DeadLetterPage,
    DeadLetterView,
    LetterId,
    PurgeReport,
    plain_id,
)
from gateway.openapi_dlq import LIST, PURGE_MANY, PURGE_ONE, READ_ONE, LetterPath
from gateway.problems import Problem
from gateway.state import state_of

_JSON = "application/json"

router = APIRouter(tags=["dead letters"])

Reason = Annotated[DeadReason | None, Query(description="Only those put aside for this reason.")]


@router.get("/v1/dlq", response_model=DeadLetterPage, summary="List dead letters", **LIST)
async def list_dead_letters(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=200, description="Most letters in the answer.")] = 50,
    before: Annotated[
        LetterId | None, Query(description="Only those older than this: the last page's `next`.")
    ] = None,
    reason: Reason = None,
) -> Response:
    """Messages that could not become finished jobs, newest first."""
    queue = state_of(request).queue
    listed = await dead_letters.list_letters(queue, before, limit, reason)
    page = {
        "items": [letter.view() for letter in listed.letters],
        "total": await queue.count_dead_letters(),
        "next": listed.next,
    }
    return Response(codec.dumps(page), 200, media_type=_JSON)


@router.get(
    "/v1/dlq/{letter_id}", response_model=DeadLetterView, summary="Read a dead letter", **READ_ONE
)
async def read_dead_letter(request: Request, letter_id: LetterPath) -> Response:
    """One dead letter, with the message as it was."""
    letter = await state_of(request).queue.dead_letter(checked_letter_id(letter_id))
    if letter is None:
        raise no_such_letter()
    return Response(codec.dumps(letter.view()), 200, media_type=_JSON)


@router.delete("/v1/dlq/{letter_id}", status_code=204, summary="Purge a dead letter", **PURGE_ONE)
async def purge_dead_letter(request: Request, letter_id: LetterPath) -> Response:
    """Forget a dead letter for good."""
    state, checked = state_of(request), checked_letter_id(letter_id)
    await state.access.write_down(request, TrailAction.DLQ_PURGE, checked)
    if not await state.queue.purge([checked]):
        raise no_such_letter()
    return Response(None, 204)


@router.delete("/v1/dlq", summary="Purge many dead letters", **PURGE_MANY)
async def purge_dead_letters(
    request: Request,
    reason: Reason = None,
    everything: Annotated[bool, Query(alias="all", description="Every one.")] = False,
) -> PurgeReport:
    """Forget the dead letters with one reason, or all of them, for good."""
    if everything == (reason is not None):
        raise Problem(
            400,
            "purge_needs_a_choice",
            "Say which dead letters: ?reason= with one reason, or ?all=true, and not both.",
        )
    state = state_of(request)
    target = "all" if reason is None else f"reason={reason.value}"
    await state.access.write_down(request, TrailAction.DLQ_PURGE, target)
    return PurgeReport(purged=await dead_letters.purge(state.queue, reason))


def checked_letter_id(raw: str) -> str:
    """The id in the path, as Redis writes it; what cannot be one is no letter's."""
    letter_id = plain_id(raw)
    if letter_id is None:
        raise no_such_letter()
    return letter_id
