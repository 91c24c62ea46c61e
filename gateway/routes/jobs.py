"""`POST /v1/jobs` and `GET /v1/jobs/{job_id}`."""

from __future__ import annotations

import hashlib
from functools import partial

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from common.codec import Job
from common.contracts.access import Scope
from gateway.callers import caller_of
from gateway.json_body import read_json
from gateway.lookup import (
    checked_job_id,
    ended_within,
    find_job,
    places,
    wait_for_news,
    wait_s_of,
)
from gateway.models import JobAccepted, JobView
from gateway.openapi import direct_route
from gateway.openapi_jobs import CREATE_JOB, READ_JOB
from gateway.state import state_of
from gateway.submitting import submit

_JSON = "application/json"

router = APIRouter(route_class=direct_route(APIRoute), tags=["jobs"])


@router.post(
    "/v1/jobs", status_code=202, response_model=JobAccepted, summary="Submit a job", **CREATE_JOB
)
async def create_job(request: Request) -> Response:
    """Accept a job, whole or not at all, and say where to watch it."""
    submitted = await submit(request, await read_json(request))
    job_id = submitted.job_id
    wait_s = wait_s_of(request) if caller_of(request).may(Scope.JOBS_READ) else 0.0
    headers = {**places(job_id, wait_s), **submitted.headers}
    if wait_s:
        ended = await ended_within(request, job_id, wait_s)
        if ended is not None:
            return _job_answer(ended, headers)
    return Response(b'{"job_id":"%b"}' % job_id.encode(), 202, headers, _JSON)


@router.get("/v1/jobs/{job_id}", response_model=JobView, summary="Read a job", **READ_JOB)
async def read_job(request: Request) -> Response:
    """The job as it stands; with `Prefer: wait` as soon as it has changed or ended."""
    state = state_of(request)
    known = request.headers.get("if-none-match", "")
    wait_s = wait_s_of(request)
    job_id = checked_job_id(request)
    job = await find_job(state, job_id)
    if wait_s and not job.terminal and not (known and _is_news(known, job)):
        job = await wait_for_news(request, job, partial(_is_news, known), wait_s)
    headers = {"Preference-Applied": f"wait={wait_s:.0f}"} if wait_s else {}
    answer = _job_answer(job, headers)
    if known and not _is_news(known, job, answer.headers["etag"]):
        del answer.headers["content-length"]
        return Response(None, 304, dict(answer.headers))
    return answer


def _job_answer(job: Job, headers: dict[str, str]) -> Response:
    body = job.to_json()
    etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    cache = "private, max-age=60" if job.terminal else "no-cache"
    if not job.terminal:
        headers = {**headers, "Retry-After": "1"}
    return Response(body, 200, {**headers, "ETag": etag, "Cache-Control": cache}, _JSON)


def _is_news(known: str, job: Job, etag: str = "") -> bool:
    """Whether a client that knows the versions in If-None-Match has not seen this one."""
    if not known:
        return job.terminal
    versions = [version.strip().removeprefix("W/") for version in known.split(",")]
    return "*" not in versions and (etag or _job_answer(job, {}).headers["etag"]) not in versions
