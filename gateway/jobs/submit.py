"""Submits a job: validates the request, chooses the partition and enqueues it atomically."""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from zlib import crc32

from pydantic import ValidationError
from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.requests import Request

from sluice.common import codec
from sluice.common.codec import JOB_ID_PATTERN, json_pointer
from sluice.common.contracts.jobs import JobField, Task
from sluice.common.contracts.models import RESERVED_TOOLS
from sluice.common.contracts.queue import TENANT_LANE_PREFIX, Lane
from sluice.common.contracts.rag import upload_key
from sluice.common.errors import (
    IdempotencyConflict,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    ScheduleFull,
    StoreUnavailable,
)
from sluice.common.jobs.limits import KeyLimits
from sluice.common.jobs.options import Backoff, JobOptions
from sluice.common.jobs.store import AcceptedJob, NewJob
from sluice.common.observability import logs
from sluice.common.observability.tracing import TraceContext
from sluice.common.process import crashpoints
from sluice.common.process.crashpoints import CrashPoint
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.partitions import HOME_PARTITION, Partitions
from sluice.common.settings.gateway import GatewaySettings
from sluice.common.settings.queue import parse_weights
from sluice.gateway.auth.callers import Caller, caller_of
from sluice.gateway.http import problems
from sluice.gateway.http.headers import REPLAYED_HEADERS, idempotency_key
from sluice.gateway.http.problems import FieldProblem, Problem
from sluice.gateway.jobs import refusals
from sluice.gateway.jobs.ids import new_job_id, new_job_id_in
from sluice.gateway.jobs.models import CreateJobRequest
from sluice.gateway.jobs.tracing import start_send_span
from sluice.gateway.observability.metrics.http import job_metrics_of
from sluice.gateway.state import GatewayState, state_of


class JobPlacement(NamedTuple):
    """The id of a new job, and the limits in its partition."""

    job_id: str
    limits: KeyLimits | None
    #: True if the job may go to any partition.
    any_partition: bool = False


def choose_placement(
    state: GatewayState, caller: Caller, task: Task, key: str | None
) -> JobPlacement:
    """Choose id and partition of a new job. `key`: its Idempotency-Key."""
    partitions = state.lines.partitions
    if partitions.count == 1:
        return JobPlacement(new_job_id(caller.tail), caller.limits)
    number = _required_partition(partitions, caller, task, key)
    if number is None:
        return JobPlacement(
            state.store.new_id(partial(new_job_id, caller.tail)), None, any_partition=True
        )
    job_id = new_job_id_in(partitions, number, caller.tail)
    return JobPlacement(job_id, caller.limits_in_partition(partitions.keys[number].tag))


def _required_partition(
    partitions: Partitions, caller: Caller, task: Task, key: str | None
) -> int | None:
    """The partition that the job must go to; None for any."""
    if task is Task.RAG:
        return HOME_PARTITION
    if caller.limits is not None:
        return partitions.number(caller.tenant or caller.key_id)
    if key is not None:
        return partitions.number(f"{caller.tenant} {key}")
    return None


#: Members of a payload that name tools: of a `tool` job, and those that a model may call.
_ONE: Final = Task.TOOL.value
_MANY: Final = "tools"


def check_reserved_tools(payload: Mapping[str, Any]) -> None:
    """Raise a problem if a payload names a reserved tool: only Sluice may run workflow steps."""
    faults = [
        FieldProblem(
            pointer=json_pointer((JobField.PAYLOAD, *location)),
            detail=f"Tools whose names begin with {', '.join(RESERVED_TOOLS)} are reserved",
        )
        for location in _reserved(payload)
    ]
    if faults:
        first = f"{faults[0].pointer}: {faults[0].detail}"
        raise Problem(
            422, "invalid_request", f"The request does not match the schema. {first}.", faults
        )


def _reserved(payload: Mapping[str, Any]) -> Iterator[tuple[str | int, ...]]:
    if _is_reserved(payload.get(_ONE)):
        yield (_ONE,)
    names = payload.get(_MANY)
    if isinstance(names, list):
        yield from ((_MANY, at) for at, name in enumerate(names) if _is_reserved(name))


def _is_reserved(name: object) -> bool:
    return isinstance(name, str) and name.startswith(RESERVED_TOOLS)


#: Distributes the jobs of a tenant over its lanes.
_lane_counter = itertools.count()


def tenant_lane(settings: GatewaySettings, tenant: str) -> str:
    """The lane of a tenant's next job; empty for the normal lane, without TENANT_LANES."""
    lanes = settings.tenant_lanes
    if not lanes:
        return ""
    first = crc32(tenant.encode())
    weight = min(parse_weights(settings.tenant_weights).get(tenant, 1), lanes)
    return f"{TENANT_LANE_PREFIX}{(first + next(_lane_counter) % weight) % lanes}"


log = logging.getLogger(__name__)


class DocumentUpload:
    """The bytes of a document, stored for the job that reads them."""

    def __init__(self, client: Redis, data: bytes, ttl_s: int, tag: str = "") -> None:
        self._client = client
        self._tag = tag
        self._data = data
        self._ttl_s = ttl_s
        self._job_id = ""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self._data).hexdigest()

    async def put(self, job_id: str) -> None:
        """Store the document for a job that is about to be accepted."""
        self._job_id = job_id
        try:
            await self._client.set(upload_key(job_id, self._tag), self._data, ex=self._ttl_s)
        except (RedisError, *TRANSIENT_ERRORS) as error:
            await self.remove()  # the command may have been executed
            raise StoreUnavailable(str(error)) from error

    async def remove(self) -> None:
        await drop_upload(self._client, self._job_id, self._tag)


async def drop_upload(client: Redis, job_id: str, tag: str = "") -> None:
    """Delete the upload of a job that will not run. Few jobs have one."""
    try:
        await client.delete(upload_key(job_id, tag))
    except (RedisError, *TRANSIENT_ERRORS) as error:
        log.info("upload of job %s not deleted, it expires by itself: %s", job_id, error)


class Submission(NamedTuple):
    """An accepted job, and the headers of the response."""

    job_id: str
    replayed: bool
    headers: dict[str, str]


async def submit(request: Request, body: Any, upload: DocumentUpload | None = None) -> Submission:
    """Submit a job from the body of `POST /v1/jobs`; raises the problem of a refusal.

    `upload`: stored before the job is accepted, and removed if it is refused.
    """
    state = state_of(request)
    caller = caller_of(request)
    with start_send_span(request.headers, state.store.keys.queue) as sent:
        job = _new_job(state, caller, request, body, sent.trace)
        if state.pressure.refusing and not await state.store.is_replay(job):
            raise state.pressure.problem()
        accepted = await (
            enqueue_job(state, job) if upload is None else _enqueue_with_upload(upload, state, job)
        )
        sent.record_accepted(accepted)
    job_metrics_of(request).record_accepted(job.task, replayed=accepted.replayed)
    if not JOB_ID_PATTERN.match(accepted.job_id) or not caller.may_see(accepted.job_id):
        raise Problem(
            503, "store_corrupt", "The entry of the Idempotency-Key in Redis is not a valid job id."
        )
    logs.job_id.set(accepted.job_id)
    headers = sent.headers
    if accepted.replayed:
        headers = {**REPLAYED_HEADERS, **headers}
    return Submission(accepted.job_id, accepted.replayed, headers)


async def _enqueue_with_upload(
    upload: DocumentUpload, state: GatewayState, job: NewJob
) -> AcceptedJob:
    await upload.put(job.job_id)
    try:
        accepted = await enqueue_job(state, job)
    except Problem:  # refused; after other errors the job may exist and need the upload
        await upload.remove()
        raise
    if accepted.job_id != job.job_id:
        await upload.remove()
    return accepted


async def enqueue_job(state: GatewayState, job: NewJob) -> AcceptedJob:
    """Enqueue the job; raises the problem of a refusal."""
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
            "This Idempotency-Key was used with a different request. Use a new key.",
        ) from None
    crashpoints.reach(CrashPoint.AFTER_ENQUEUE)
    return accepted


def _new_job(
    state: GatewayState, caller: Caller, request: Request, body: Any, trace: TraceContext | None
) -> NewJob:
    """Check everything that can be checked without Redis."""
    settings = state.settings
    try:
        wanted = CreateJobRequest.model_validate(body)
    except ValidationError as error:
        raise problems.validation_problem(error) from None
    if caller.tasks is not None and wanted.task.value not in caller.tasks:
        allowed = ", ".join(sorted(caller.tasks))
        detail = f"This API key is not allowed to submit this task; allowed: {allowed}."
        raise Problem(403, "task_not_allowed", detail)
    check_reserved_tools(wanted.payload)
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
        lane = tenant_lane(settings, caller.tenant)
    has_options = wanted.timeout_s is not None or wanted.backoff is not None or lane
    if has_options or trace is not None or caller.tenant or caller.tools is not None:
        options = _options(wanted, trace, caller, lane)
    if wanted.delay_s is not None or wanted.run_at is not None:
        delay_ms = _delay_ms(wanted)
    key = idempotency_key(request)
    fingerprint = ""
    if key is not None:
        # Without omitted members: options added by a later version do not change fingerprints.
        whole = codec.dumps_canonical(wanted.model_dump(mode="json", exclude_none=True))
        fingerprint = hashlib.sha256(whole).hexdigest()
    placement = choose_placement(state, caller, wanted.task, key)
    return NewJob(
        job_id=placement.job_id,
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
        limits=placement.limits,
        any_partition=placement.any_partition,
        lane=lane,
    )


def _lane(state: GatewayState, wanted: Lane) -> str:
    """The requested lane; empty for the normal one."""
    if wanted is Lane.NORMAL:
        return ""
    if wanted.value not in state.settings.lane_names:
        names = (*state.settings.lane_names, Lane.NORMAL.value)
        there = ", ".join(lane.value for lane in Lane if lane.value in names)
        raise Problem(
            422, "lane_not_configured", f"This lane is not configured (LANES); available: {there}."
        )
    return str(wanted.value)


def _options(
    wanted: CreateJobRequest, trace: TraceContext | None, caller: Caller, lane: str = ""
) -> bytes:
    """Options for the worker: those of the request, and the caller's tenant and tools."""
    backoff = wanted.backoff
    wait = None if backoff is None else Backoff(**backoff.model_dump())
    parent, state = trace or (None, None)
    tools = None if caller.tools is None else tuple(sorted(caller.tools))
    tenant = caller.tenant or None
    options = JobOptions(wanted.timeout_s, wait, parent, state, tenant, tools, lane or None)
    return options.to_json()


def _delay_ms(wanted: CreateJobRequest) -> int:
    """Milliseconds until the job is due, rounded up so that it does not start early."""
    if wanted.run_at is None:
        return math.ceil((wanted.delay_s or 0) * 1000)
    return max(0, math.ceil((wanted.run_at.timestamp() - time.time()) * 1000))
