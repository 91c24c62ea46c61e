"""`GET /v1/bullmq/{queue}/events` and `…/jobs/{id}/events`: BullMQ's events, live."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from gateway.bullmq import paths
from gateway.bullmq.events import job_source, queue_source
from gateway.bullmq.lookup import job_id_of, no_such_job, queue_of, queues_of
from gateway.callers import caller_of
from gateway.openapi import direct_route
from gateway.openapi_bullmq import WATCH, WATCH_QUEUE
from gateway.refusals import check_streams
from gateway.sources import Source
from gateway.state import state_of
from gateway.streams import (
    SEND_TIMEOUT_S,
    EventStream,
    frames,
    hello,
    media_type_of,
    resume_position,
)
from gateway.watch import Position

#: How many of a queue's last events are looked through for those of a job that is gone.
LOOKED_THROUGH: Final = 1000

router = APIRouter(route_class=direct_route(APIRoute), tags=["bullmq"])


@router.get(paths.QUEUE_EVENTS, summary="Watch a queue", **WATCH_QUEUE)
async def watch_queue(request: Request) -> Response:
    """Every event of the queue from now on, or after Last-Event-ID."""
    media_type, after = media_type_of(request), resume_position(request)
    queue, caller = queue_of(request), caller_of(request)
    source = queue_source(queue.keys, None if caller.sees_all else caller.may_see)
    last = await queues_of(request).hub.last_position(source)
    start = last if after is None else min(after, last)
    facts = {paths.QUEUE: queue.keys.queue}
    return _stream(request, source, start, facts, media_type, resumed=after is not None)


@router.get(paths.EVENTS, summary="Watch a job of a queue", **WATCH)
async def watch_bull_job(request: Request) -> Response:
    """Every event of the job that the queue still has, then live ones, until it has ended."""
    media_type, after = media_type_of(request), resume_position(request)
    queue, job_id = queue_of(request), job_id_of(request)
    source, hub = job_source(queue.keys, job_id), queues_of(request).hub
    job = await queue.look(job_id)
    if after is not None and (job is None or job.ended) and await hub.ends_at(source, after):
        return Response(None, 204)
    if job is None and not any(
        frame.about == job_id for frame in await hub.newest(source, LOOKED_THROUGH)
    ):
        raise no_such_job()
    facts = {paths.JOB: job_id, paths.QUEUE: queue.keys.queue}
    if job is not None:
        facts["state"] = job.state.value
    start = (0, 0) if after is None else min(after, await hub.last_position(source))
    is_over = job is None or job.ended
    return _stream(
        request, source, start, facts, media_type, ended=is_over, resumed=after is not None
    )


def _stream(
    request: Request,
    source: Source,
    start: Position,
    facts: dict[str, Any],
    media_type: str,
    *,
    ended: bool = False,
    resumed: bool,
) -> Response:
    state, hub = state_of(request), queues_of(request).hub
    check_streams(state)
    if resumed:
        hub.numbers.resumes += 1
    told = frames(
        state,
        caller_of(request),
        source,
        start,
        hello(state, facts),
        media_type,
        ended=ended,
        hub=hub,
    )
    return EventStream(hub, told, media_type, SEND_TIMEOUT_S)
