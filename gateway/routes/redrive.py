"""`POST /v1/dlq/{letter_id}/redrive` and `POST /v1/dlq/redrive`."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from common.contracts.access import TrailAction
from gateway import problems
from gateway.dlq_models import PARTITIONS, Redriven, RedriveReport, RedriveRequest
from gateway.json_body import read_json
from gateway.lookup import places
from gateway.openapi import direct_route
from gateway.openapi_dlq import REDRIVE_MANY, REDRIVE_ONE
from gateway.redrive import RedriveRun, redrive
from gateway.routes.dead_letters import checked_letter_id
from gateway.state import state_of

_JSON = "application/json"

router = APIRouter(route_class=direct_route(APIRoute), tags=["dead letters"])


@router.post(
    "/v1/dlq/{letter_id}/redrive",
    status_code=202,
    response_model=Redriven,
    summary="Redrive a dead letter",
    **REDRIVE_ONE,
)
async def redrive_one(request: Request) -> Response:
    """Make a new job of the message and forget the letter; the same job when repeated."""
    state = state_of(request)
    letter_id = checked_letter_id(state, request.path_params["letter_id"])
    await state.access.write_down(request, TrailAction.DLQ_REDRIVE, letter_id)
    job_id = await redrive(state, letter_id, await state.queue.dead_letter(letter_id))
    answer = Redriven(job_id=job_id, dead_letter_id=letter_id)
    return Response(answer.model_dump_json(), 202, places(job_id), _JSON)


@router.post(
    "/v1/dlq/redrive",
    response_model=RedriveReport,
    summary="Redrive many dead letters",
    **REDRIVE_MANY,
)
async def redrive_many(request: Request) -> Response:
    """Make jobs of many messages, newest first, handed out at a bearable rate."""
    state = state_of(request)
    context = {PARTITIONS: state.settings.queue_partitions}
    try:
        wanted = RedriveRequest.model_validate(await read_json(request), context=context)
    except ValidationError as error:
        raise problems.misfit(error) from None
    if not wanted.dry_run:
        await state.access.write_down(request, TrailAction.DLQ_REDRIVE, wanted.target)
    report = await RedriveRun(state, wanted).run()
    return Response(report.model_dump_json(), 200, media_type=_JSON)
