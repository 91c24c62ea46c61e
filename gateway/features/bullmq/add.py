"""Adds a job to a BullMQ queue: validates the request, chooses the id and adds it atomically."""

from __future__ import annotations

import hashlib
from types import NoneType
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from sluice.common import codec
from sluice.common.contracts.bullmq import BullAnswer, BullOpt
from sluice.common.contracts.jobs import Option
from sluice.common.features.bullmq.job import has_tenant_mark
from sluice.common.features.bullmq.queue import AddResult, BullQueue, NewBullJob
from sluice.common.observability import logs
from sluice.common.text import plural
from sluice.gateway.auth.callers import Caller, caller_of
from sluice.gateway.features.bullmq.models import (
    AddOutcome,
    AddRequest,
    BullJobOptions,
    is_job_id,
)
from sluice.gateway.features.bullmq.queues import BullQueues, bullmq_of
from sluice.gateway.http.headers import checked_idempotency_key
from sluice.gateway.http.problems import FieldProblem, Problem, retry_headers
from sluice.gateway.jobs.backpressure import DEFAULT_RETRY_S, bound_retry_s
from sluice.gateway.jobs.ids import new_job_id
from sluice.gateway.jobs.submit import check_reserved_tools
from sluice.gateway.state import GatewayState, state_of

#: Prefix of ids derived from an Idempotency-Key that is not a valid job id.
KEY_ID_PREFIX: Final = "key-"
_OUTCOMES: Final = {
    BullAnswer.CREATED: AddOutcome.ADDED,
    BullAnswer.REPLAYED: AddOutcome.REPLAYED,
    BullAnswer.DUPLICATE: AddOutcome.DUPLICATE,
    BullAnswer.DEDUPLICATED: AddOutcome.DEDUPLICATED,
}


class AddedJob(NamedTuple):
    """The job of a request, and whether it was added."""

    queue: str
    job_id: str
    outcome: AddOutcome


async def add(request: Request, queue: BullQueue, wanted: AddRequest, key: str | None) -> AddedJob:
    """Add a job to a queue; raises the problem of a refusal. `key`: the Idempotency-Key."""
    state, caller = state_of(request), caller_of(request)
    queues = bullmq_of(request)
    job = _new_job(state, caller, queues, wanted, key)
    if state.pressure.refusing:
        raise state.pressure.problem()
    most = state.settings.bullmq_max_unfinished
    added = await queue.add(job, most)
    name = queue.keys.queue
    queues.outcomes[name, added.answer] += 1
    if added.answer is BullAnswer.CONFLICT:
        raise Problem(
            422,
            "idempotency_key_reused",
            "This Idempotency-Key was used with a different request. Use a new key.",
        )
    if added.answer is BullAnswer.FULL:
        raise _full(added, most)
    if not caller.may_see(added.job_id):
        raise Problem(503, "store_corrupt", "Redis returned the id of another tenant's job.")
    logs.job_id.set(added.job_id)
    return AddedJob(name, added.job_id, _OUTCOMES[added.answer])


def _new_job(
    state: GatewayState, caller: Caller, queues: BullQueues, wanted: AddRequest, header: str | None
) -> NewBullJob:
    """Check everything that can be checked without Redis."""
    settings = state.settings
    _check_caller(caller, wanted.name)
    if not caller.sees_all:
        _check_tenant_options(wanted.opts)
    if isinstance(wanted.data, dict):
        check_reserved_tools(wanted.data)
    data = codec.dumps(wanted.data)
    if len(data) > settings.max_payload_bytes:
        raise Problem(
            413,
            "payload_too_large",
            f"The data has {len(data)} bytes of JSON; {settings.max_payload_bytes} are allowed.",
        )
    if wanted.opts.jobId in queues.reserved:
        raise _invalid_job_id("Input should not be the name of one of the queue's own keys")
    opts: dict[str, Any] = wanted.opts.model_dump(exclude_none=True)
    key, fingerprint = checked_idempotency_key(header), ""
    if key is not None:
        if wanted.opts.jobId is not None:
            raise _invalid_job_id(
                "Input should be absent with an Idempotency-Key, which determines the id"
            )
        whole = codec.dumps_canonical(wanted.model_dump(mode="json", exclude_none=True))
        fingerprint = hashlib.sha256(whole).hexdigest()
    job_id = _job_id(caller, wanted.opts.jobId, key, queues)
    if job_id:
        opts["jobId"] = job_id
    if caller.tail and "deduplication" in opts:
        opts["deduplication"]["id"] += "-" + caller.tail
    rights = _rights(caller)
    if rights or has_tenant_mark(job_id):
        # Without it a worker would treat a job with such an id as that of an unknown tenant.
        opts[BullOpt.SLUICE] = rights
    return NewBullJob(
        wanted.name, data, opts, job_id, fingerprint, settings.idempotency_ttl_s * 1000
    )


def _check_caller(caller: Caller, name: str) -> None:
    """Raise a problem if the key is restricted in a way that cannot be enforced in BullMQ queues,
    which third-party workers consume."""
    if caller.tasks is not None and name not in caller.tasks:
        allowed = ", ".join(sorted(caller.tasks))
        detail = f"This API key is not allowed to add this job; allowed: {allowed}."
        raise Problem(403, "task_not_allowed", detail)
    if caller.limits is not None:
        raise Problem(
            403,
            "key_limited",
            "This API key has a rate or a quota, which cannot be enforced in BullMQ queues. Use a "
            "key without them.",
        )


def _check_tenant_options(opts: BullJobOptions) -> None:
    """Raise a problem if a tenant's job would affect jobs of other tenants: BullMQ removes finished
    jobs of the whole queue, and runs jobs of all tenants in one order."""
    faults = [
        FieldProblem(
            pointer=f"/opts/{name}", detail="Input should be true or false, for this job only"
        )
        for name in ("removeOnComplete", "removeOnFail")
        if not isinstance(getattr(opts, name), (bool, NoneType))
    ]
    faults += [
        FieldProblem(pointer=f"/opts/{name}", detail="Input should be absent: it orders all jobs")
        for name in ("priority", "lifo")
        if getattr(opts, name)
    ]
    if faults:
        raise Problem(
            403,
            "option_not_allowed",
            "This API key belongs to a tenant, whose jobs must not affect those of other tenants. "
            f"{faults[0].pointer}: {faults[0].detail}.",
            faults,
        )


def _rights(caller: Caller) -> dict[str, Any]:
    """The tenant of the job and the tools that it may use, for Sluice workers."""
    rights: dict[str, Any] = {}
    if caller.tenant:
        rights[Option.TENANT] = caller.tenant
    if caller.tools is not None:
        rights[Option.TOOLS] = sorted(caller.tools)
    return rights


def _job_id(caller: Caller, wanted: str | None, key: str | None, queues: BullQueues) -> str:
    """The job's id; '' to let BullMQ choose one. Ids of a tenant's jobs end with its tail."""
    if wanted is None and key is not None:
        is_one = is_job_id(key) and key not in queues.reserved and not key.startswith(KEY_ID_PREFIX)
        wanted = key if is_one else KEY_ID_PREFIX + hashlib.sha256(key.encode()).hexdigest()[:32]
    if not caller.tail:
        return wanted or ""
    return new_job_id(caller.tail) if wanted is None else f"{wanted}-{caller.tail}"


def _invalid_job_id(detail: str) -> Problem:
    fault = FieldProblem(pointer="/opts/jobId", detail=detail)
    words = f"The request does not match the schema. {fault.pointer}: {detail}"
    return Problem(422, "invalid_request", words, [fault])


def _full(added: AddResult, most: int) -> Problem:
    return Problem(
        429,
        "queue_full",
        f"{plural(added.unfinished, 'job of this queue has', 'jobs of this queue have')} not "
        f"ended; {plural(most, 'is', 'are')} allowed. Try again later.",
        headers=retry_headers(bound_retry_s(DEFAULT_RETRY_S)),
    )
