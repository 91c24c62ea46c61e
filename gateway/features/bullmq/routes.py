"""`/v1/bullmq`: add, read, watch and remove jobs of BullMQ queues."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sluice.common.contracts.access import AuditAction
from sluice.common.contracts.bullmq import BullAnswer
from sluice.common.features.bullmq.job import has_tenant_mark
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.events.frames import Source
from sluice.gateway.events.response import (
    SEND_TIMEOUT_S,
    EventStreamResponse,
    hello_frame,
    negotiate_media_type,
    resume_position,
    stream_events,
)
from sluice.gateway.events.subscriber import Position
from sluice.gateway.feature import Feature, FeatureContext
from sluice.gateway.features.bullmq import add
from sluice.gateway.features.bullmq.events import job_source, queue_source
from sluice.gateway.features.bullmq.lookup import (
    CheckedJobId,
    CheckedQueue,
    body_of,
    job_id_of,
    job_not_found,
    queue_of,
)
from sluice.gateway.features.bullmq.models import (
    AddJobResponse,
    AddOutcome,
    BullJobView,
    RemovalOutcome,
    RemoveJobResponse,
)
from sluice.gateway.features.bullmq.openapi import ADD, READ, REMOVE, WATCH, WATCH_QUEUE, AddBody
from sluice.gateway.features.bullmq.queues import BullQueues, bullmq_of, check_settings
from sluice.gateway.http import paths
from sluice.gateway.http.headers import (
    REPLAYED_HEADERS,
    IdempotencyKey,
    IfNoneMatch,
    json_with_etag,
)
from sluice.gateway.http.problems import Problem
from sluice.gateway.http.routing import DirectRoute, JsonRoute
from sluice.gateway.jobs.refusals import check_streams
from sluice.gateway.state import state_of

#: Last events of a queue that are searched for those of a removed job.
EVENT_SCAN_MAX: Final = 1000

router = APIRouter(route_class=JsonRoute, tags=["bullmq"])
#: Event streams read the request themselves.
_streams = APIRouter(route_class=DirectRoute, tags=["bullmq"])


@_streams.get(paths.BULLMQ_QUEUE_EVENTS, summary="Watch a BullMQ queue", **WATCH_QUEUE)
async def watch_queue(request: Request) -> Response:
    """Streams the events of the queue from now on, or after Last-Event-ID."""
    media_type, after = negotiate_media_type(request), resume_position(request)
    queue, caller = queue_of(request), caller_of(request)
    source = queue_source(queue.keys, None if caller.sees_all else caller.may_see)
    last = await bullmq_of(request).hub.last_position(source)
    start = last if after is None else min(after, last)
    facts = {paths.BULLMQ_QUEUE_PARAM: queue.keys.queue}
    return _stream(request, source, start, facts, media_type, resumed=after is not None)


@_streams.get(paths.BULLMQ_JOB_EVENTS, summary="Watch a BullMQ job", **WATCH)
async def watch_bull_job(request: Request) -> Response:
    """Streams the stored events of the job, then live ones, until the job has ended."""
    media_type, after = negotiate_media_type(request), resume_position(request)
    queue, job_id = queue_of(request), job_id_of(request)
    source, hub = job_source(queue.keys, job_id), bullmq_of(request).hub
    job = await queue.get(job_id)
    if after is not None and (job is None or job.ended) and await hub.is_terminal_at(source, after):
        return Response(None, 204)
    if job is None and not any(
        frame.subject_id == job_id for frame in await hub.newest(source, EVENT_SCAN_MAX)
    ):
        raise job_not_found()
    facts = {paths.BULLMQ_JOB_PARAM: job_id, paths.BULLMQ_QUEUE_PARAM: queue.keys.queue}
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
    state, hub = state_of(request), bullmq_of(request).hub
    check_streams(request)
    if resumed:
        hub.metrics.resumes += 1
    frames = stream_events(
        state,
        caller_of(request),
        source,
        start,
        hello_frame(state, facts),
        media_type,
        ended=ended,
        hub=hub,
    )
    return EventStreamResponse(hub, frames, media_type, SEND_TIMEOUT_S)


_JSON = "application/json"


@router.post(
    paths.BULLMQ_JOBS,
    status_code=202,
    response_model=AddJobResponse,
    summary="Add a BullMQ job",
    **ADD,
)
async def add_job(
    request: Request,
    queue: CheckedQueue,
    body: AddBody,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Adds a job for BullMQ workers, Node's or Sluice's. An Idempotency-Key becomes the job's id,
    so it cannot be combined with `jobId`."""
    added = await add.add(request, queue, body, idempotency_key)
    view = AddJobResponse(id=added.job_id, queue=added.queue, outcome=added.outcome)
    headers = {"Location": paths.bullmq_job_url(added.queue, added.job_id)}
    if added.outcome is AddOutcome.REPLAYED:
        headers.update(REPLAYED_HEADERS)
    return Response(view.model_dump_json(), 202, headers, _JSON)


@router.get(paths.BULLMQ_JOB, response_model=BullJobView, summary="Read a BullMQ job", **READ)
async def read_bull_job(
    queue: CheckedQueue, job_id: CheckedJobId, if_none_match: IfNoneMatch = None
) -> Response:
    """Returns the job, whichever client has added it."""
    job = await queue.get(job_id)
    if job is None:
        raise job_not_found()
    return json_with_etag(body_of(job), if_none_match, {} if job.ended else {"Retry-After": "1"})


@router.delete(
    paths.BULLMQ_JOB,
    response_model=RemoveJobResponse,
    summary="Remove a BullMQ job",
    **REMOVE,
)
async def remove_job(request: Request, queue: CheckedQueue, job_id: CheckedJobId) -> Response:
    """Removes the job with its children. A running job is asked to stop."""
    if has_tenant_mark(job_id) and not caller_of(request).owns(job_id):
        target = f"{queue.keys.queue}/{job_id}"
        await state_of(request).access.record(request, AuditAction.JOB_CANCEL, target)
    answer = await queue.remove(job_id)
    if answer is BullAnswer.MISSING:
        raise job_not_found()
    if answer is BullAnswer.SCHEDULED:
        raise Problem(
            409,
            "scheduled_job",
            "This is the next job of a scheduler, which would add it again. Remove the scheduler.",
        )
    if answer is BullAnswer.LOCKED:
        raise Problem(
            409, "child_running", "A child of this job is running. Remove the child first."
        )
    canceling = answer is BullAnswer.CANCELING
    outcome = RemovalOutcome.CANCELING if canceling else RemovalOutcome.REMOVED
    view = RemoveJobResponse(id=job_id, queue=queue.keys.queue, outcome=outcome)
    return Response(view.model_dump_json(), 202 if canceling else 200, media_type=_JSON)


def _build(context: FeatureContext) -> BullQueues:
    connections = context.connections
    url = context.settings.bullmq_redis_url or connections.url
    writing, reading = connections.connect(url), connections.connect(url)
    queues = BullQueues(context.settings, writing, reading, context.state.hub.metrics)
    context.state.streams.add(queues.hub)
    queues.hub.start()
    return queues


FEATURE: Final = Feature([_streams, router], "bullmq", build=_build, check_settings=check_settings)
