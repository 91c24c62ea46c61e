"""`GET /api/workflow/jobs/{job_id}/events/stream`: a workflow job's events, live."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from common.contracts.workflow import Fact, JobHash, WorkflowStatus
from gateway.callers import caller_of
from gateway.openapi import direct_route
from gateway.openapi_workflow_actions import WATCH
from gateway.refusals import check_streams
from gateway.sources import workflow_source
from gateway.state import state_of
from gateway.streams import (
    SEND_TIMEOUT_S,
    EventStream,
    frames,
    hello,
    media_type_of,
    resume_position,
)
from gateway.workflow import paths
from gateway.workflow.lookup import find_job

#: Nothing more comes of these by itself. (A failed job may be taken up again.)
_ENDED = (WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED)

router = APIRouter(route_class=direct_route(APIRoute), tags=["workflows"])


@router.get(paths.STREAM, summary="Watch a workflow job", **WATCH)
async def watch_workflow(request: Request) -> Response:
    """Every event of the job, stored ones first, then live ones, until the job has ended."""
    state = state_of(request)
    media_type = media_type_of(request)
    after = resume_position(request)
    job = await find_job(request)
    ended = job.status in _ENDED
    source = workflow_source(state.workflow_reader.keys, job.job_id)
    if after is not None:
        last = await state.hub.last_position(source)
        if ended and after == last:
            return Response(None, 204)
        # An id from before a FLUSHALL or a restored backup may lie beyond the stream's end: where
        # nothing more comes, its client is told what there is.
        after = (0, 0) if ended and after > last else min(after, last)
        state.hub.numbers.resumes += 1
    check_streams(state)
    facts = {
        Fact.JOB_ID.value: job.job_id,
        Fact.STATUS.value: job.status.value,
        JobHash.CURRENT_STEP.value: job.current_step,
        "progress": job.progress,
    }
    told = frames(
        state,
        caller_of(request),
        source,
        after or (0, 0),
        hello(state, facts),
        media_type,
        ended=ended,
    )
    return EventStream(state.hub, told, media_type, SEND_TIMEOUT_S)
