"""`/v1/jobs`: submit, read, watch and cancel jobs."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.codec import Job
from sluice.common.contracts.access import AuditAction, Scope
from sluice.common.contracts.jobs import JobField, Status
from sluice.common.contracts.queue import Answer
from sluice.common.process import crashpoints
from sluice.common.process.crashpoints import CrashPoint
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.events.response import (
    SEND_TIMEOUT_S,
    EventStreamResponse,
    hello_frame,
    negotiate_media_type,
    resume_position,
    stream_events,
)
from sluice.gateway.http.body import read_json
from sluice.gateway.http.headers import if_none_match, is_etag_listed, not_modified, strong_etag
from sluice.gateway.http.routing import DirectRoute, JsonRoute
from sluice.gateway.jobs.lookup import (
    CheckedJobId,
    WaitSeconds,
    checked_job_id,
    find_job,
    job_not_found,
    location_headers,
    wait_for_change,
    wait_s_of,
    wait_until_ended,
)
from sluice.gateway.jobs.models import CancelRequest, CancelView, JobView, SubmitJobResponse
from sluice.gateway.jobs.openapi import (
    CANCEL_JOB,
    CREATE_JOB,
    READ_JOB,
    WATCH_JOB,
    CancelBody,
)
from sluice.gateway.jobs.refusals import check_streams
from sluice.gateway.jobs.submit import drop_upload, submit
from sluice.gateway.state import state_of

_JSON = "application/json"

#: Hot routes: they read the request themselves.
router = APIRouter(route_class=DirectRoute, tags=["jobs"])
events_router = APIRouter(route_class=DirectRoute, tags=["events"])
cancel_router = APIRouter(route_class=JsonRoute, tags=["jobs"])


@cancel_router.post(
    "/v1/jobs/{job_id}/cancel", response_model=CancelView, summary="Cancel a job", **CANCEL_JOB
)
async def cancel_job(
    request: Request, job_id: CheckedJobId, body: CancelBody, wait_s: WaitSeconds
) -> Response:
    """A waiting job is canceled at once. A running job is asked to stop."""
    return await _cancel(request, job_id, body, wait_s)


@cancel_router.delete(
    "/v1/jobs/{job_id}", response_model=CancelView, summary="Cancel a job", **CANCEL_JOB
)
async def delete_job(request: Request, job_id: CheckedJobId, wait_s: WaitSeconds) -> Response:
    """The same as POST …/cancel. The job can still be read until its `ttl_s` has passed."""
    return await _cancel(request, job_id, CancelRequest(), wait_s)


async def _cancel(request: Request, job_id: str, wanted: CancelRequest, wait_s: float) -> Response:
    state = state_of(request)
    settings = state.settings
    data = codec.dumps(wanted.model_dump(exclude_none=True))
    caller = caller_of(request)
    if not caller.owns(job_id):
        await state.access.record(request, AuditAction.JOB_CANCEL, job_id)
    crashpoints.reach(CrashPoint.BEFORE_CANCEL)
    reply = await state.store.cancel(job_id, settings.worker_group, data, settings.job_ttl_s)
    crashpoints.reach(CrashPoint.AFTER_CANCEL)
    if reply.answer is Answer.MISSING:
        raise job_not_found()
    if reply.answer is Answer.ALREADY:
        assert isinstance(reply.value, bytes)
        return _ended(job_id, codec.decode_text(reply.value))
    if reply.answer is Answer.CANCELED:
        await drop_upload(state.client, job_id, settings.keys.tag)
        return _ended(job_id, Status.CANCELED.value)
    ended = await wait_until_ended(request, job_id, wait_s) if wait_s else None
    if ended is not None:
        return _ended(job_id, ended.status, wait_s)
    view = CancelView(job_id=job_id, status=Status.RUNNING, canceling=True)
    headers = {**location_headers(job_id, wait_s), "Retry-After": "1"}
    return Response(view.model_dump_json(), 202, headers, _JSON)


def _ended(job_id: str, status: str, wait_s: float = 0.0) -> Response:
    view = CancelView(job_id=job_id, status=Status(status))
    return Response(
        view.model_dump_json(exclude_none=True), 200, location_headers(job_id, wait_s), _JSON
    )


@events_router.get("/v1/jobs/{job_id}/events", summary="Watch a job", **WATCH_JOB)
async def watch_job(request: Request) -> Response:
    """Streams the stored events of the job, then live ones, until the job has ended."""
    state = state_of(request)
    media_type = negotiate_media_type(request)
    after = resume_position(request)
    job = await find_job(state, checked_job_id(request))
    source = state.hub.job(job.job_id)
    if after is not None:
        last = await state.hub.last_frame(source)
        if last is not None and last.type in source.ending and after >= last.position:
            return Response(None, 204)
        if job.terminal and await state.hub.is_terminal_at(source, after):
            return Response(None, 204)
        # An id from before a FLUSHALL or a restored backup may lie beyond the stream's end.
        after = min(after, last.position if last is not None else (0, 0))
    check_streams(request)
    facts = {JobField.JOB_ID: job.job_id, JobField.STATUS: job.status}
    if after is not None:
        state.hub.metrics.resumes += 1
    frames = stream_events(
        state, caller_of(request), source, after or (0, 0), hello_frame(state, facts), media_type
    )
    return EventStreamResponse(state.hub, frames, media_type, SEND_TIMEOUT_S)


@router.post(
    "/v1/jobs",
    status_code=202,
    response_model=SubmitJobResponse,
    summary="Submit a job",
    **CREATE_JOB,
)
async def create_job(request: Request) -> Response:
    """Accepts a job atomically. Location and Link say where to read and watch it."""
    submitted = await submit(request, await read_json(request))
    job_id = submitted.job_id
    wait_s = wait_s_of(request) if caller_of(request).may(Scope.JOBS_READ) else 0.0
    headers = {**location_headers(job_id, wait_s), **submitted.headers}
    if wait_s:
        ended = await wait_until_ended(request, job_id, wait_s)
        if ended is not None:
            return _job_answer(ended, headers)
    return Response(b'{"job_id":"%b"}' % job_id.encode(), 202, headers, _JSON)


@router.get("/v1/jobs/{job_id}", response_model=JobView, summary="Read a job", **READ_JOB)
async def read_job(request: Request) -> Response:
    """Returns the job. With `Prefer: wait` the response waits until it has changed or ended."""
    state = state_of(request)
    known = if_none_match(request)
    wait_s = wait_s_of(request)
    job_id = checked_job_id(request)
    job = await find_job(state, job_id)
    if wait_s and not job.terminal and not (known and _is_changed(known, job)):
        job = await wait_for_change(request, job, partial(_is_changed, known), wait_s)
    headers = {"Preference-Applied": f"wait={wait_s:.0f}"} if wait_s else {}
    answer = _job_answer(job, headers)
    if known and not _is_changed(known, job, answer.headers["etag"]):
        del answer.headers["content-length"]
        return not_modified(answer.headers)
    return answer


def _job_answer(job: Job, headers: dict[str, str]) -> Response:
    body = job.to_json()
    tag = strong_etag(body)
    cache = "private, max-age=60" if job.terminal else "no-cache"
    if not job.terminal:
        headers = {**headers, "Retry-After": "1"}
    return Response(body, 200, {**headers, "ETag": tag, "Cache-Control": cache}, _JSON)


def _is_changed(known: str, job: Job, tag: str = "") -> bool:
    """True if If-None-Match does not list the current version."""
    if not known:
        return job.terminal
    return not is_etag_listed(known, tag or strong_etag(job.to_json()))
