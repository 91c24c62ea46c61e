"""`POST /v1/jobs` and `GET /v1/jobs/{job_id}`."""

from __future__ import annotations

import hashlib
import math
import re
import time
from functools import partial
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from common import codec, crashpoints, logs
from common.codec import JOB_ID, Job
from common.contracts.access import Scope
from common.crashpoints import CrashPoint
from common.errors import (
    IdempotencyConflict,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    ScheduleFull,
)
from common.options import Backoff, JobOptions
from common.store import Accepted, NewJob
from common.tracing import Trace
from gateway import problems, refusals
from gateway.callers import Caller, caller_of
from gateway.ids import new_job_id
from gateway.json_body import read_json
from gateway.lookup import (
    checked_job_id,
    ended_within,
    find_job,
    places,
    wait_for_news,
    wait_s_of,
)
from gateway.metrics import metrics_of
from gateway.models import CreateJobRequest, JobAccepted, JobView
from gateway.openapi import direct_route
from gateway.openapi_jobs import CREATE_JOB, READ_JOB
from gateway.problems import Problem
from gateway.sending import sending
from gateway.state import GatewayState, state_of

_KEY = re.compile(r"\A[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?\Z")
_JSON = "application/json"

router = APIRouter(route_class=direct_route(APIRoute), tags=["jobs"])


@router.post(
    "/v1/jobs", status_code=202, response_model=JobAccepted, summary="Submit a job", **CREATE_JOB
)
async def create_job(request: Request) -> Response:
    """Accept a job, whole or not at all, and say where to watch it."""
    state = state_of(request)
    caller = caller_of(request)
    body = await read_json(request)
    with sending(request.headers, state.store.keys.queue) as sent:
        job = _new_job(state, caller, request, body, sent.trace)
        if state.pressure.refusing and not await state.store.is_repetition(job):
            raise state.pressure.problem()
        accepted = await _accept(state, job)
        sent.accepted(accepted)
    metrics_of(request).jobs.accepted(job.task, replayed=accepted.replayed)
    if not JOB_ID.match(accepted.job_id) or not caller.may_see(accepted.job_id):
        raise Problem(503, "store_corrupt", "The Idempotency-Key's entry in Redis is no job id.")
    logs.job_id.set(accepted.job_id)
    wait_s = wait_s_of(request) if caller.may(Scope.JOBS_READ) else 0.0
    headers = {**_acceptance_headers(accepted, wait_s), **sent.headers}
    if wait_s:
        ended = await ended_within(request, accepted.job_id, wait_s)
        if ended is not None:
            return _job_answer(ended, headers)
    return Response(b'{"job_id":"%b"}' % accepted.job_id.encode(), 202, headers, _JSON)


async def _accept(state: GatewayState, job: NewJob) -> Accepted:
    """Hand the job to Redis; a Problem says why it was not taken."""
    if crashpoints.ARMED:
        crashpoints.reach(CrashPoint.BEFORE_ENQUEUE)
    enqueue = state.store.enqueue if job.limits is None else state.access.quotas.enqueue
    try:
        accepted = await enqueue(
            job, state.settings.worker_group, state.settings.backpressure_max_backlog
        )
    except RateLimited as limited:
        raise refusals.rate_limited(limited) from None
    except QuotaExceeded as exceeded:
        most = job.limits.max_jobs if job.limits else 0
        raise refusals.quota_exceeded(state, exceeded, most) from None
    except QueueFull as full:
        raise refusals.queue_full(state, full) from None
    except ScheduleFull as full:
        raise await refusals.schedule_full(state, full.waiting) from None
    except IdempotencyConflict:
        raise Problem(
            422,
            "idempotency_key_reused",
            "This Idempotency-Key came with another request before. Use a new key.",
        ) from None
    if crashpoints.ARMED:
        crashpoints.reach(CrashPoint.AFTER_ENQUEUE)
    return accepted


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


def _new_job(
    state: GatewayState, caller: Caller, request: Request, body: Any, trace: Trace | None
) -> NewJob:
    """Everything checked that can be checked before Redis is asked."""
    settings = state.settings
    try:
        wanted = CreateJobRequest.model_validate(body)
    except ValidationError as error:
        raise problems.invalid(error.errors()) from None
    if caller.tasks is not None and wanted.task.value not in caller.tasks:
        allowed = ", ".join(sorted(caller.tasks))
        detail = f"This API key may not ask for this task; it may ask for: {allowed}."
        raise Problem(403, "task_not_allowed", detail)
    payload = codec.dumps(wanted.payload)
    if len(payload) > settings.max_payload_bytes:
        raise Problem(
            413,
            "payload_too_large",
            f"The payload has {len(payload)} bytes of JSON; {settings.max_payload_bytes} are "
            "allowed.",
        )
    ttl_s = settings.job_ttl_s if wanted.ttl_s is None else wanted.ttl_s
    options, delay_ms = b"", 0
    if wanted.timeout_s is not None or wanted.backoff is not None or trace is not None:
        options = _options(wanted, trace)
    if wanted.delay_s is not None or wanted.run_at is not None:
        delay_ms = _delay_ms(wanted)
    key = _idempotency_key(request)
    fingerprint = ""
    if key is not None:
        # Without what was left out: wishes that a later version adds change no fingerprint.
        whole = codec.dumps_canonical(wanted.model_dump(mode="json", exclude_none=True))
        fingerprint = hashlib.sha256(whole).hexdigest()
    return NewJob(
        job_id=new_job_id(caller.tail),
        task=wanted.task.value,
        payload=payload,
        ttl_s=ttl_s,
        idempotency_key=key,
        idempotency_ttl_s=max(settings.idempotency_ttl_s, ttl_s + -(-delay_ms // 1000)),
        fingerprint=fingerprint,
        max_attempts=wanted.max_attempts,
        options=options,
        delay_ms=delay_ms,
        schedule_limit=settings.max_scheduled,
        tenant=caller.tenant,
        limits=caller.limits,
    )


def _options(wanted: CreateJobRequest, trace: Trace | None) -> bytes:
    backoff = wanted.backoff
    wait = None if backoff is None else Backoff(**backoff.model_dump())
    return JobOptions(wanted.timeout_s, wait, *(trace or ())).to_json()


def _delay_ms(wanted: CreateJobRequest) -> int:
    """Milliseconds until the job is due, rounded up: never before its time."""
    if wanted.run_at is None:
        return math.ceil((wanted.delay_s or 0) * 1000)
    return max(0, math.ceil((wanted.run_at.timestamp() - time.time()) * 1000))


def _idempotency_key(request: Request) -> str | None:
    """The client's key; the quotes of a structured header are not part of it."""
    raw = request.headers.get("idempotency-key")
    if raw is None:
        return None
    key = raw[1:-1] if len(raw) > 1 and raw[0] == raw[-1] == '"' else raw
    if not _KEY.match(key):
        raise Problem(
            400,
            "invalid_idempotency_key",
            "Idempotency-Key must be 1 to 255 printable ASCII characters, such as a UUID.",
        )
    return key


def _acceptance_headers(accepted: Accepted, wait_s: float) -> dict[str, str]:
    headers = places(accepted.job_id, wait_s)
    if accepted.replayed:
        headers["Idempotent-Replayed"] = "true"
    return headers


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
