"""`/v1/dlq`: list, read, redrive and purge dead letters."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.contracts.access import AuditAction
from sluice.common.contracts.jobs import DeadReason
from sluice.gateway.admin.dlq import listing
from sluice.gateway.admin.dlq.listing import (
    DeadLetterFilter,
    dead_letter_not_found,
    group_by_failure,
)
from sluice.gateway.admin.dlq.models import (
    DEAD_LETTER_ID,
    PARTITIONS,
    DeadLetterGroup,
    DeadLetterGroups,
    DeadLetterPage,
    DeadLetterView,
    Fingerprint,
    PurgeReport,
    RedrivenJob,
    RedriveReport,
    RedriveRequest,
    audit_target,
    canonical_id,
)
from sluice.gateway.admin.dlq.redrive import RedriveRun, redrive
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.problems import Problem, validation_problem
from sluice.gateway.http.routing import JsonBody, JsonRoute
from sluice.gateway.jobs.lookup import location_headers
from sluice.gateway.state import GatewayState, state_of

_ID = "The id from the list."
_EXAMPLE = "1760000000000-0"
_AWAY = "Redis does not answer."
_UNKNOWN = "The dead letter does not exist."

DeadLetterIdPath = Annotated[str, Path(description=_ID, examples=[_EXAMPLE])]

LIST: dict[str, Any] = {"responses": problem_responses(_422="Invalid query parameter.", _503=_AWAY)}
GROUPS: dict[str, Any] = {"responses": problem_responses(_503=_AWAY)}
READ_ONE: dict[str, Any] = {"responses": problem_responses(_404=_UNKNOWN, _503=_AWAY)}
PURGE_ONE: dict[str, Any] = {"responses": problem_responses(_404=_UNKNOWN, _503=_AWAY)}
PURGE_MANY: dict[str, Any] = {
    "responses": problem_responses(
        _400="The request does not have exactly one of reason, fingerprint and all.",
        _422="Invalid reason or fingerprint.",
        _503=_AWAY,
    )
}
REDRIVE_ONE: dict[str, Any] = {
    "responses": problem_responses(
        _404=_UNKNOWN,
        _422="The message has no known task, or its payload is not a JSON object.",
        _429="The schedule is full; see Retry-After.",
        _503=_AWAY,
    ),
}
REDRIVE_MANY: dict[str, Any] = {
    "responses": problem_responses(
        _503="Redis does not answer. Some may be redriven; repeat the request to continue.",
    )
}


_JSON = "application/json"

router = APIRouter(tags=["dead-letters"])

ReasonQuery = Annotated[DeadReason | None, Query(description="Only dead letters with this reason.")]
FingerprintQuery = Annotated[
    Fingerprint | None,
    Query(description="Only dead letters of this group of `GET /v1/dlq/groups`."),
]


@router.get("/v1/dlq", response_model=DeadLetterPage, summary="List dead letters", **LIST)
async def list_dead_letters(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=200, description="Maximum number of dead letters.")] = 50,
    before: Annotated[
        str | None, Query(description="Only entries older than this: `next` of the previous page.")
    ] = None,
    reason: ReasonQuery = None,
    fingerprint: FingerprintQuery = None,
) -> Response:
    """Returns dead letters, newest first: messages whose jobs could not be finished."""
    state = state_of(request)
    queue = state.queue
    choice = DeadLetterFilter(reason, fingerprint)
    start = None if before is None else _checked_start(state, before)
    listed = await listing.list_dead_letters(queue, start, limit, choice)
    page = {
        "items": [letter.view() for letter in listed.letters],
        "total": await queue.count_dead_letters(),
        "next": listed.next,
    }
    return Response(codec.dumps(page), 200, media_type=_JSON)


@router.get("/v1/dlq/groups", summary="Group dead letters by failure", **GROUPS)
async def group_dead_letters(request: Request) -> DeadLetterGroups:
    """Groups dead letters with the same reason, task and error, ignoring numbers and ids."""
    queue = state_of(request).queue
    grouped = await group_by_failure(queue)
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
    "/v1/dlq/{letter_id}", response_model=DeadLetterView, summary="Get a dead letter", **READ_ONE
)
async def get_dead_letter(request: Request, letter_id: DeadLetterIdPath) -> Response:
    """Returns a dead letter with its original message."""
    state = state_of(request)
    letter = await state.queue.dead_letter(checked_letter_id(state, letter_id))
    if letter is None:
        raise dead_letter_not_found()
    return Response(codec.dumps(letter.view()), 200, media_type=_JSON)


@router.delete("/v1/dlq/{letter_id}", status_code=204, summary="Purge a dead letter", **PURGE_ONE)
async def purge_dead_letter(request: Request, letter_id: DeadLetterIdPath) -> Response:
    """Deletes a dead letter permanently."""
    state = state_of(request)
    checked = checked_letter_id(state, letter_id)
    await state.access.record(request, AuditAction.DLQ_PURGE, checked)
    if not await state.queue.purge([checked]):
        raise dead_letter_not_found()
    return Response(None, 204)


@router.delete("/v1/dlq", summary="Purge many dead letters", **PURGE_MANY)
async def purge_dead_letters(
    request: Request,
    reason: ReasonQuery = None,
    fingerprint: FingerprintQuery = None,
    everything: Annotated[bool, Query(alias="all", description="All dead letters.")] = False,
) -> PurgeReport:
    """Deletes the dead letters with one reason, of one group, or all of them, permanently."""
    if [reason is not None, fingerprint is not None, everything].count(True) != 1:
        raise Problem(
            400,
            "purge_needs_a_choice",
            "Select the dead letters with exactly one of ?reason=, ?fingerprint= and ?all=true.",
        )
    state = state_of(request)
    await state.access.record(request, AuditAction.DLQ_PURGE, audit_target(reason, fingerprint))
    return PurgeReport(
        purged=await listing.purge(state.queue, DeadLetterFilter(reason, fingerprint))
    )


def checked_letter_id(state: GatewayState, raw: str) -> str:
    """The canonical form of the id in the path; raises 404 for an invalid one."""
    letter_id = canonical_id(raw, state.settings.queue_partitions)
    if letter_id is None:
        raise dead_letter_not_found()
    return letter_id


def _checked_start(state: GatewayState, raw: str) -> str:
    """The start of a page. FastAPI cannot validate it: the number of partitions matters."""
    try:
        return DEAD_LETTER_ID.validate_python(
            raw, context={PARTITIONS: state.settings.queue_partitions}
        )
    except ValidationError as error:
        raise validation_problem(error, "before") from None


class _RedriveBody(JsonBody[RedriveRequest]):
    """The number of partitions decides which ids are valid."""

    def validate(self, request: Request, value: Any) -> RedriveRequest:
        context = {PARTITIONS: state_of(request).settings.queue_partitions}
        try:
            return RedriveRequest.model_validate(value, context=context)
        except ValidationError as error:
            raise validation_problem(error) from None


RedriveBody = Annotated[
    RedriveRequest,
    Depends(
        _RedriveBody(RedriveRequest, {"all": True, "limit": 100, "rate_per_s": 10, "dry_run": True})
    ),
]

redrive_router = APIRouter(route_class=JsonRoute, tags=["dead-letters"])


@redrive_router.post(
    "/v1/dlq/{letter_id}/redrive",
    status_code=202,
    response_model=RedrivenJob,
    summary="Redrive a dead letter",
    **REDRIVE_ONE,
)
async def redrive_dead_letter(request: Request, letter_id: DeadLetterIdPath) -> Response:
    """Creates a new job from the message and deletes the dead letter. Idempotent."""
    state = state_of(request)
    checked = checked_letter_id(state, letter_id)
    await state.access.record(request, AuditAction.DLQ_REDRIVE, checked)
    job_id = await redrive(state, checked, await state.queue.dead_letter(checked))
    answer = RedrivenJob(job_id=job_id, dead_letter_id=checked)
    return Response(answer.model_dump_json(), 202, location_headers(job_id), _JSON)


@redrive_router.post(
    "/v1/dlq/redrive",
    response_model=RedriveReport,
    summary="Redrive many dead letters",
    **REDRIVE_MANY,
)
async def redrive_dead_letters(request: Request, body: RedriveBody) -> Response:
    """Creates new jobs from many dead letters, newest first, `rate_per_s` each second."""
    state = state_of(request)
    if not body.dry_run:
        await state.access.record(request, AuditAction.DLQ_REDRIVE, body.target)
    report = await RedriveRun(state, body).run()
    return Response(report.model_dump_json(), 200, media_type=_JSON)
