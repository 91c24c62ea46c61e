"""`GET /v1/jobs/{job_id}/events`: the job's events, live, as SSE or NDJSON."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from fastapi import APIRouter
from fastapi.routing import APIRoute
from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from common.codec import Job, stream_id
from common.contracts.jobs import FrameType, JobField
from gateway.frames import RETRY_MS, Frame, notice
from gateway.openapi import WATCH_JOB, direct_route
from gateway.problems import Problem, retry_headers
from gateway.routes.jobs import checked_job_id, find_job
from gateway.state import GatewayState, state_of
from gateway.watch import Position, Watch

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
#: A client that takes no bytes for this long has gone; it may resume.
SEND_TIMEOUT_S = 30.0
_HEADERS = {
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",
    "Vary": "Accept",
}

router = APIRouter(route_class=direct_route(APIRoute), tags=["events"])


@router.get("/v1/jobs/{job_id}/events", summary="Watch a job", **WATCH_JOB)
async def watch_job(request: Request) -> Response:
    """Every event of the job, stored ones first, then live ones, until the job has ended."""
    state = state_of(request)
    media_type = _media_type(request.headers.get("accept", ""))
    after = _resume_position(request)
    job = await find_job(state, checked_job_id(request))
    if after is not None:
        # An id from before a FLUSHALL or a restored backup may lie beyond the stream's end.
        after = min(after, await state.hub.last_position(job.job_id))
        if job.terminal and not await state.hub.page(job.job_id, after):
            return Response(None, 204)
    if state.hub.clients >= state.settings.sse_max_clients:
        raise Problem(
            503,
            "too_many_streams",
            f"{state.hub.clients} event streams are open, which is all this process serves.",
            headers=retry_headers(5.0),
        )
    watch = state.hub.watch(job.job_id, after or (0, 0))
    hello = _hello(state, job)
    if media_type == NDJSON:
        return StreamingResponse(_ndjson(watch, hello), 200, _HEADERS, NDJSON)
    return EventSourceResponse(
        _sse(watch, hello), headers=_HEADERS, ping=0, send_timeout=SEND_TIMEOUT_S
    )


async def _sse(watch: Watch, hello: Frame) -> AsyncIterator[bytes]:
    try:
        yield hello.sse
        while batch := await watch.next_batch():
            yield batch[0].sse if len(batch) == 1 else b"".join([frame.sse for frame in batch])
    finally:
        watch.close()


async def _ndjson(watch: Watch, hello: Frame) -> AsyncIterator[bytes]:
    try:
        yield hello.ndjson
        while batch := await watch.next_batch():
            yield b"".join([frame.ndjson for frame in batch])
    finally:
        watch.close()


def _hello(state: GatewayState, job: Job) -> Frame:
    return notice(
        FrameType.HELLO,
        {
            JobField.JOB_ID.value: job.job_id,
            JobField.STATUS.value: job.status,
            "server_ts": int(time.time() * 1000),
            "heartbeat_s": state.settings.sse_heartbeat_s,
        },
        retry_ms=RETRY_MS,
    )


def _media_type(accept: str) -> str:
    """SSE unless the client asks for NDJSON first; a client that takes neither gets a 406."""
    for part in accept.split(",") if accept.strip() else ["*/*"]:
        wanted = part.partition(";")[0].strip().lower()
        if wanted in (SSE, "*/*", "text/*"):
            return SSE
        if wanted in (NDJSON, "application/jsonl", "application/*"):
            return NDJSON
    raise Problem(406, "not_acceptable", f"Events come as {SSE} or as {NDJSON}.")


def _resume_position(request: Request) -> Position | None:
    raw = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
    if not raw:
        return None
    position = stream_id(raw)
    if position is None:
        raise Problem(
            400, "invalid_last_event_id", "Last-Event-ID must be the id of an event, such as 17-0."
        )
    return position
