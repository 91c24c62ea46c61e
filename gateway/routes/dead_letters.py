"""`/v1/dlq`: reading and forgetting dead letters."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.contracts.access import TrailAction
from common.contracts.jobs import DeadReason
from gateway import dead_letters
from gateway.dead_letter_groups import group_letters
from gateway.dead_letters import Choice, no_such_letter
from gateway.dlq_models import (
    LETTER_ID,
    PARTITIONS,
    DeadLetterGroup,
    DeadLetterGroups,
    DeadLetterPage,
    DeadLetterView,
    Fingerprint,
    PurgeReport,
    plain_id,
    target_of,
)
from gateway.openapi_dlq import GROUPS, LIST, PURGE_MANY, PURGE_ONE, READ_ONE, LetterPath
from gateway.problems import Problem, misfit
from gateway.state import GatewayState, state_of

_JSON = "application/json"

router = APIRouter(tags=["dead letters"])

Reason = Annotated[DeadReason | None, Query(description="Only those put aside for this reason.")]
Print = Annotated[
    Fingerprint | None, Query(description="Only those of this group of `GET /v1/dlq/groups`.")
]


@router.get("/v1/dlq", response_model=DeadLetterPage, summary="List dead letters", **LIST)
async def list_dead_letters(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=200, description="Most letters in the answer.")] = 50,
    before: Annotated[
        str | None, Query(description="Only those older than this: the last page's `next`.")
    ] = None,
    reason: Reason = None,
    fingerprint: Print = None,
) -> Response:
    """Messages that could not become finished jobs, newest first."""
    state = state_of(request)
    queue = state.queue
    choice = Choice(reason, fingerprint)
    start = None if before is None else _checked_start(state, before)
    listed = await dead_letters.list_letters(queue, start, limit, choice)
    page = {
        "items": [letter.view() for letter in listed.letters],
        "total": await queue.count_dead_letters(),
        "next": listed.next,
    }
    return Response(codec.dumps(page), 200, media_type=_JSON)


@router.get("/v1/dlq/groups", summary="Dead letters by how they failed", **GROUPS)
async def group_dead_letters(request: Request) -> DeadLetterGroups:
    """How many failed alike: one reason, one task, one error but for numbers and ids."""
    queue = state_of(request).queue
    grouped = await group_letters(queue)
    groups = [
        DeadLetterGroup(
            fingerprint=alike.fingerprint,
            count=group.count,
            reason=alike.reason,
            task=alike.task or None,
            kind=alike.kind or None,
            message=alike.message or None,
            newest_id=group.newest_id,
            newest_job_id=group.newest_job_id or None,
            newest_ts=group.newest_ts,
            oldest_id=group.oldest_id,
            oldest_ts=group.oldest_ts,
        )
        for alike, group in grouped.groups
    ]
    return DeadLetterGroups(
        groups=groups,
        total=await queue.count_dead_letters(),
        looked_at=grouped.looked_at,
        complete=grouped.complete,
    )


@router.get(
    "/v1/dlq/{letter_id}", response_model=DeadLetterView, summary="Read a dead letter", **READ_ONE
)
async def read_dead_letter(request: Request, letter_id: LetterPath) -> Response:
    """One dead letter, with the message as it was."""
    state = state_of(request)
    letter = await state.queue.dead_letter(checked_letter_id(state, letter_id))
    if letter is None:
        raise no_such_letter()
    return Response(codec.dumps(letter.view()), 200, media_type=_JSON)


@router.delete("/v1/dlq/{letter_id}", status_code=204, summary="Purge a dead letter", **PURGE_ONE)
async def purge_dead_letter(request: Request, letter_id: LetterPath) -> Response:
    """Forget a dead letter for good."""
    state = state_of(request)
    checked = checked_letter_id(state, letter_id)
    await state.access.write_down(request, TrailAction.DLQ_PURGE, checked)
    if not await state.queue.purge([checked]):
        raise no_such_letter()
    return Response(None, 204)


@router.delete("/v1/dlq", summary="Purge many dead letters", **PURGE_MANY)
async def purge_dead_letters(
    request: Request,
    reason: Reason = None,
    fingerprint: Print = None,
    everything: Annotated[bool, Query(alias="all", description="Every one.")] = False,
) -> PurgeReport:
    """Forget the dead letters with one reason, of one group, or all of them, for good."""
    if [reason is not None, fingerprint is not None, everything].count(True) != 1:
        raise Problem(
            400,
            "purge_needs_a_choice",
            "Say which dead letters: ?reason= with one reason, ?fingerprint= with one group's, or "
            "?all=true, and no two of them.",
        )
    state = state_of(request)
    await state.access.write_down(request, TrailAction.DLQ_PURGE, target_of(reason, fingerprint))
    return PurgeReport(purged=await dead_letters.purge(state.queue, Choice(reason, fingerprint)))


def checked_letter_id(state: GatewayState, raw: str) -> str:
    """The id in the path, as we write it; what cannot be one is no letter's."""
    letter_id = plain_id(raw, state.settings.queue_partitions)
    if letter_id is None:
        raise no_such_letter()
    return letter_id


def _checked_start(state: GatewayState, raw: str) -> str:
    """Where a list goes on; raises what FastAPI would, which does not know of partitions."""
    try:
        return LETTER_ID.validate_python(raw, context={PARTITIONS: state.settings.queue_partitions})
    except ValidationError as error:
        raise misfit(error, "before") from None
