"""A request's way into the queue: checked, traced, counted, accepted whole or not at all."""

from __future__ import annotations

import hashlib
import math
import re
import time
from typing import Any, NamedTuple

from pydantic import ValidationError
from starlette.requests import Request

from common import codec, crashpoints, logs
from common.codec import JOB_ID
from common.contracts.lanes import Lane
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
from gateway.metrics import metrics_of
from gateway.models import CreateJobRequest
from gateway.placement import place_of
from gateway.problems import Problem
from gateway.reserved_tools import check_tools
from gateway.sending import sending
from gateway.state import GatewayState, state_of
from gateway.tenant_lanes import lane_of
from gateway.uploads import Upload

_KEY = re.compile(r"\A[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?\Z")


class Submitted(NamedTuple):
    """The job behind a request, and what the answer's headers say of its acceptance."""

    job_id: str
    replayed: bool
    headers: dict[str, str]


async def submit(request: Request, body: Any, upload: Upload | None = None) -> Submitted:
    """Make a job of what `POST /v1/jobs` takes; a Problem says why there is none.

    `upload`: laid down for the job before it is accepted, and taken back if it is not.
    """
    state = state_of(request)
    caller = caller_of(request)
    with sending(request.headers, state.store.keys.queue) as sent:
        job = _new_job(state, caller, request, body, sent.trace)
        if state.pressure.refusing and not await state.store.is_repetition(job):
            raise state.pressure.problem()
        accepted = await (accept(state, job) if upload is None else _with(upload, state, job))
        sent.accepted(accepted)
    metrics_of(request).jobs.accepted(job.task, replayed=accepted.replayed)
    if not JOB_ID.match(accepted.job_id) or not caller.may_see(accepted.job_id):
        raise Problem(503, "store_corrupt", "The Idempotency-Key's entry in Redis is no job id.")
    logs.job_id.set(accepted.job_id)
    headers = sent.headers
    if accepted.replayed:
        headers = {"Idempotent-Replayed": "true", **headers}
    return Submitted(accepted.job_id, accepted.replayed, headers)


async def _with(upload: Upload, state: GatewayState, job: NewJob) -> Accepted:
    await upload.put(job.job_id)
    try:
        accepted = await accept(state, job)
    except Problem:  # refused for sure; where nobody knows, the job may be there and need it
        await upload.take_back()
        raise
    if accepted.job_id != job.job_id:
        await upload.take_back()
    return accepted


async def accept(state: GatewayState, job: NewJob) -> Accepted:
    """Hand the job to Redis; a Problem says why it was not taken."""
    if crashpoints.ARMED:
        crashpoints.reach(CrashPoint.BEFORE_ENQUEUE)
    enqueue = state.store.enqueue if job.limits is None else state.access.quotas.enqueue
    try:
        accepted = await enqueue(job, state.settings.worker_group, state.backlog_limit)
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


def _new_job(
    state: GatewayState, caller: Caller, request: Request, body: Any, trace: Trace | None
) -> NewJob:
    """Everything checked that can be checked before Redis is asked."""
    settings = state.settings
    try:
        wanted = CreateJobRequest.model_validate(body)
    except ValidationError as error:
        raise problems.misfit(error) from None
    if caller.tasks is not None and wanted.task.value not in caller.tasks:
        allowed = ", ".join(sorted(caller.tasks))
        detail = f"This API key may not ask for this task; it may ask for: {allowed}."
        raise Problem(403, "task_not_allowed", detail)
    check_tools(wanted.payload)
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
    lane = ""
    if wanted.lane is not None:
        lane = _lane(state, wanted.lane)
    elif caller.tenant:
        lane = lane_of(settings, caller.tenant)
    wishes = wanted.timeout_s is not None or wanted.backoff is not None or lane
    if wishes or trace is not None or caller.tenant or caller.tools is not None:
        options = _options(wanted, trace, caller, lane)
    if wanted.delay_s is not None or wanted.run_at is not None:
        delay_ms = _delay_ms(wanted)
    key = idempotency_key(request)
    fingerprint = ""
    if key is not None:
        # Without what was left out: wishes that a later version adds change no fingerprint.
        whole = codec.dumps_canonical(wanted.model_dump(mode="json", exclude_none=True))
        fingerprint = hashlib.sha256(whole).hexdigest()
    place = place_of(state, caller, wanted.task, key)
    return NewJob(
        job_id=place.job_id,
        task=wanted.task.value,
        payload=payload,
        ttl_s=ttl_s,
        idempotency_key=key,
        idempotency_ttl_s=max(settings.idempotency_ttl_s, ttl_s + -(-delay_ms // 1000)),
        fingerprint=fingerprint,
        max_attempts=wanted.max_attempts,
        options=options,
        delay_ms=delay_ms,
        schedule_limit=state.schedule_limit,
        tenant=caller.tenant,
        limits=place.limits,
        anywhere=place.anywhere,
        lane=lane,
    )


def _lane(state: GatewayState, wanted: Lane) -> str:
    """The lane that was asked for; empty for the normal one."""
    if wanted is Lane.NORMAL:
        return ""
    if wanted.value not in state.settings.lane_names:
        names = (*state.settings.lane_names, Lane.NORMAL.value)
        there = ", ".join(lane.value for lane in Lane if lane.value in names)
        raise Problem(
            422, "lane_not_configured", f"There is no such lane here (LANES); there is: {there}."
        )
    return str(wanted.value)


def _options(
    wanted: CreateJobRequest, trace: Trace | None, caller: Caller, lane: str = ""
) -> bytes:
    """What the worker must know beside the payload: the request's wishes, and on whose behalf."""
    backoff = wanted.backoff
    wait = None if backoff is None else Backoff(**backoff.model_dump())
    parent, state = trace or (None, None)
    tools = None if caller.tools is None else tuple(sorted(caller.tools))
    tenant = caller.tenant or None
    options = JobOptions(wanted.timeout_s, wait, parent, state, tenant, tools, lane or None)
    return options.to_json()


def _delay_ms(wanted: CreateJobRequest) -> int:
    """Milliseconds until the job is due, rounded up: never before its time."""
    if wanted.run_at is None:
        return math.ceil((wanted.delay_s or 0) * 1000)
    return max(0, math.ceil((wanted.run_at.timestamp() - time.time()) * 1000))


def idempotency_key(request: Request) -> str | None:
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
