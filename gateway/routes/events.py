"""`GET /v1/jobs/{job_id}/events`: the job's events, live, as SSE or NDJSON."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from common.contracts.jobs import JobField
from gateway.callers import caller_of
from gateway.lookup import checked_job_id, find_job
from gateway.openapi import direct_route
from gateway.openapi_jobs import WATCH_JOB
from gateway.refusals import check_streams
from gateway.state import state_of
from gateway.streams import (
    SEND_TIMEOUT_S,
    EventStream,
    frames,
    hello,
    media_type_of,
    resume_position,
)

router = APIRouter(route_class=direct_route(APIRoute), tags=["events"])


@router.get("/v1/jobs/{job_id}/events", summary="Watch a job", **WATCH_JOB)
async def watch_job(request: Request) -> Response:
    """Every event of the job, stored ones first, then live ones, until the job has ended."""
    state = state_of(request)
    media_type = media_type_of(request)
    after = resume_position(request)
    job = await find_job(state, checked_job_id(request))
    source = state.hub.job(job.job_id)
    if after is not None:
        last = await state.hub.last_frame(source)
        if last is not None and last.type in source.ending and after >= last.position:
            return Response(None, 204)
        if job.terminal and await state.hub.ends_at(source, after):
            return Response(None, 204)
        # An id from before a FLUSHALL or a restored backup may lie beyond the stream's end.
        after = min(after, last.position if last is not None else (0, 0))
    check_streams(state)
    facts = {JobField.JOB_ID.value: job.job_id, JobField.STATUS.value: job.status}
    if after is not None:
        state.hub.numbers.resumes += 1
    told = frames(
        state, caller_of(request), source, after or (0, 0), hello(state, facts), media_type
    )
    return EventStream(state.hub, told, media_type, SEND_TIMEOUT_S)
