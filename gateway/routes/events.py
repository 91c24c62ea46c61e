"""`GET /v1/jobs/{job_id}/events`: the job's events, live, as SSE or NDJSON."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Send

from common.codec import Job, stream_id
from common.contracts.jobs import FrameType, JobField
from gateway.callers import Caller, caller_of
from gateway.frames import RETRY_MS, Frame, notice
from gateway.lookup import checked_job_id, find_job
from gateway.openapi import direct_route
from gateway.openapi_jobs import WATCH_JOB
from gateway.problems import Problem, retry_headers
from gateway.state import GatewayState, state_of
from gateway.tail import Hub
from gateway.watch import Position

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
#: A client that takes no bytes for this long has gone; it may resume.
SEND_TIMEOUT_S = 30.0
_REFUSED = re.compile(r"q\s*=\s*0(\.0*)?\Z")
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
        last = await state.hub.last_frame(job.job_id)
        if last is not None and last.terminal and after >= last.position:
            return Response(None, 204)
        if job.terminal and await state.hub.ends_at(job.job_id, after):
            return Response(None, 204)
        # An id from before a FLUSHALL or a restored backup may lie beyond the stream's end.
        after = min(after, last.position if last is not None else (0, 0))
    if state.hub.clients >= state.settings.sse_max_clients:
        raise Problem(
            503,
            "too_many_streams",
            f"{state.hub.clients} event streams are open, which is all this process serves.",
            headers=retry_headers(5.0),
        )
    frames = _frames(
        state, caller_of(request), job.job_id, after or (0, 0), _hello(state, job), media_type
    )
    if after is not None:
        state.hub.numbers.resumes += 1
    return _EventStream(
        state.hub,
        frames,
        headers=_HEADERS,
        media_type=media_type,
        ping=0,
        send_timeout=SEND_TIMEOUT_S,
    )


class _EventStream(EventSourceResponse):
    """Counts the clients that were given up because they take nothing any more."""

    def __init__(self, hub: Hub, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._hub = hub

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        try:
            await super()._send_with_timeout(send, message)
        except SendTimeoutError:
            self._hub.numbers.slow_closed += 1
            raise


async def _frames(
    state: GatewayState,
    caller: Caller,
    job_id: str,
    after: Position,
    hello: Frame,
    media_type: str,
) -> AsyncIterator[bytes]:
    # Opened only when the first bytes are asked for: a client may have left before.
    watch = state.hub.watch(job_id, after)
    try:
        yield hello.sse if media_type == SSE else hello.ndjson
        while batch := await watch.next_batch():
            if caller.key_id and not await state.access.callers.still_valid(caller):
                return  # revoked meanwhile; who comes again is told so
            if media_type == SSE:
                data = b"".join([frame.sse for frame in batch])
            else:
                data = b"".join([frame.ndjson for frame in batch])
            state.hub.numbers.sent(batch, len(data), live=watch.live)
            yield data
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
        wanted, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if any(_REFUSED.match(parameter) for parameter in parameters):
            continue
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
