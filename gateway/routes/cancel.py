"""`POST /v1/jobs/{job_id}/cancel`, and `DELETE /v1/jobs/{job_id}`, which is the same."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from common import codec, crashpoints
from common.contracts.access import TrailAction
from common.contracts.jobs import Status
from common.contracts.scripts import Answer
from common.crashpoints import CrashPoint
from gateway import problems, uploads
from gateway.callers import caller_of
from gateway.json_body import read_json_if_any
from gateway.lookup import checked_job_id, ended_within, no_such_job, places, wait_s_of
from gateway.models import CancelRequest, CancelView
from gateway.openapi import direct_route
from gateway.openapi_jobs import CANCEL_JOB, DELETE_JOB
from gateway.state import state_of

_JSON = "application/json"

router = APIRouter(route_class=direct_route(APIRoute), tags=["jobs"])


@router.post(
    "/v1/jobs/{job_id}/cancel", response_model=CancelView, summary="Cancel a job", **CANCEL_JOB
)
async def cancel_job(request: Request) -> Response:
    """End a job that nobody runs at once; ask for the end of one that somebody runs."""
    job_id = checked_job_id(request)
    try:
        wanted = CancelRequest.model_validate(await read_json_if_any(request))
    except ValidationError as error:
        raise problems.misfit(error) from None
    return await _cancel(request, job_id, wanted)


@router.delete("/v1/jobs/{job_id}", response_model=CancelView, summary="Cancel a job", **DELETE_JOB)
async def delete_job(request: Request) -> Response:
    """The same as to cancel it; the job can still be read for its `ttl_s`."""
    return await _cancel(request, checked_job_id(request), CancelRequest())


async def _cancel(request: Request, job_id: str, wanted: CancelRequest) -> Response:
    state = state_of(request)
    settings = state.settings
    data = codec.dumps(wanted.model_dump(exclude_none=True))
    caller = caller_of(request)
    if caller.key_id and not caller.owns(job_id):
        await state.access.write_down(request, TrailAction.JOB_CANCEL, job_id)
    if crashpoints.ARMED:
        crashpoints.reach(CrashPoint.BEFORE_CANCEL)
    reply = await state.store.cancel(job_id, settings.worker_group, data, settings.job_ttl_s)
    if crashpoints.ARMED:
        crashpoints.reach(CrashPoint.AFTER_CANCEL)
    if reply.answer is Answer.MISSING:
        raise no_such_job()
    if reply.answer is Answer.ALREADY:
        assert isinstance(reply.value, bytes)
        return _ended(job_id, codec.text(reply.value))
    if reply.answer is Answer.CANCELED:
        await uploads.drop(state.client, job_id, settings.keys.tag)
        return _ended(job_id, Status.CANCELED.value)
    wait_s = wait_s_of(request)
    ended = await ended_within(request, job_id, wait_s) if wait_s else None
    if ended is not None:
        return _ended(job_id, ended.status, wait_s)
    view = CancelView(job_id=job_id, status=Status.RUNNING, canceling=True)
    headers = {**places(job_id, wait_s), "Retry-After": "1"}
    return Response(view.model_dump_json(), 202, headers, _JSON)


def _ended(job_id: str, status: str, wait_s: float = 0.0) -> Response:
    view = CancelView(job_id=job_id, status=Status(status))
    return Response(view.model_dump_json(exclude_none=True), 200, places(job_id, wait_s), _JSON)
