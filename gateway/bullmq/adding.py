"""A request's way into a queue of BullMQ: checked, named, accepted whole or not at all."""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

from pydantic import ValidationError
from starlette.requests import Request

from common import codec, logs
from common.bullmq.queue import Added, NewBullJob
from common.contracts.bullmq import BullAnswer
from gateway import problems
from gateway.admission import UNKNOWN_S, within_bounds
from gateway.bullmq.lookup import queue_of, queues_of
from gateway.bullmq.models import AddRequest, Outcome, is_job_id
from gateway.bullmq.queues import BullQueues
from gateway.callers import Caller, caller_of
from gateway.ids import new_job_id
from gateway.problems import FieldProblem, Problem, retry_headers
from gateway.reserved_tools import check_tools
from gateway.state import GatewayState, state_of
from gateway.submitting import idempotency_key

#: How ids begin that are made of an Idempotency-Key which cannot be one.
KEYED: Final = "key-"
_OUTCOMES: Final = {
    BullAnswer.CREATED: Outcome.ADDED,
    BullAnswer.REPLAYED: Outcome.REPLAYED,
    BullAnswer.DUPLICATE: Outcome.DUPLICATE,
    BullAnswer.DEDUPLICATED: Outcome.DEDUPLICATED,
}


class Taken(NamedTuple):
    """The job behind a request, and how it came to be."""

    queue: str
    job_id: str
    outcome: Outcome


async def add(request: Request, body: Any) -> Taken:
    """Put a job into the queue that the path names; a Problem says why there is none."""
    state, caller, queue = state_of(request), caller_of(request), queue_of(request)
    queues = queues_of(request)
    job = _new_job(state, caller, queues, request, body)
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
            "This Idempotency-Key came with another request before. Use a new key.",
        )
    if added.answer is BullAnswer.FULL:
        raise _full(added, most)
    if not caller.may_see(added.job_id):
        raise Problem(503, "store_corrupt", "Redis names another tenant's job.")
    logs.job_id.set(added.job_id)
    return Taken(name, added.job_id, _OUTCOMES[added.answer])


def _new_job(
    state: GatewayState, caller: Caller, queues: BullQueues, request: Request, body: Any
) -> NewBullJob:
    """Everything checked that can be checked before Redis is asked."""
    settings = state.settings
    try:
        wanted = AddRequest.model_validate(body)
    except ValidationError as error:
        raise problems.misfit(error) from None
    _check_caller(caller, wanted.name)
    if isinstance(wanted.data, dict):
        check_tools(wanted.data)
    data = codec.dumps(wanted.data)
    if len(data) > settings.max_payload_bytes:
        raise Problem(
            413,
            "payload_too_large",
            f"The data has {len(data)} bytes of JSON; {settings.max_payload_bytes} are allowed.",
        )
    if wanted.opts.jobId in queues.reserved:
        raise _bad_id("Input should not be what a key of the queue itself is called")
    opts: dict[str, Any] = wanted.opts.model_dump(exclude_none=True)
    key, fingerprint = idempotency_key(request), ""
    if key is not None:
        if wanted.opts.jobId is not None:
            raise _bad_id("Input should be absent where an Idempotency-Key says the id")
        whole = codec.dumps_canonical(wanted.model_dump(mode="json", exclude_none=True))
        fingerprint = hashlib.sha256(whole).hexdigest()
    job_id = _job_id(caller, wanted.opts.jobId, key, queues)
    if job_id:
        opts["jobId"] = job_id
    if caller.tail and "deduplication" in opts:
        opts["deduplication"]["id"] += "-" + caller.tail
    return NewBullJob(
        wanted.name, data, opts, job_id, fingerprint, settings.idempotency_ttl_s * 1000
    )


def _check_caller(caller: Caller, name: str) -> None:
    """A key's limits are kept where jobs are made; what cannot be kept in a queue that others
    work on is not promised."""
    if caller.tasks is not None and name not in caller.tasks:
        allowed = ", ".join(sorted(caller.tasks))
        detail = f"This API key may not ask for this job; it may ask for: {allowed}."
        raise Problem(403, "task_not_allowed", detail)
    if caller.limits is not None or caller.tools is not None:
        raise Problem(
            403,
            "key_limited",
            "This API key has a rate, a quota or a list of tools, which are not kept in BullMQ's "
            "queues. Use one without.",
        )


def _job_id(caller: Caller, wanted: str | None, key: str | None, queues: BullQueues) -> str:
    """The job's id; '' for one that BullMQ gives. Those of a tenant's jobs end with its mark, by
    which they are told from others'."""
    if wanted is None and key is not None:
        is_one = is_job_id(key) and key not in queues.reserved and not key.startswith(KEYED)
        wanted = key if is_one else KEYED + hashlib.sha256(key.encode()).hexdigest()[:32]
    if not caller.tail:
        return wanted or ""
    return new_job_id(caller.tail) if wanted is None else f"{wanted}-{caller.tail}"


def _bad_id(detail: str) -> Problem:
    fault = FieldProblem(pointer="/opts/jobId", detail=detail)
    words = f"The request does not fit the schema. {fault.pointer}: {detail}"
    return Problem(422, "invalid_request", words, [fault])


def _full(added: Added, most: int) -> Problem:
    return Problem(
        429,
        "queue_full",
        f"{added.unfinished} jobs of this queue have not ended; {most} are allowed. Try again "
        "later.",
        headers=retry_headers(within_bounds(UNKNOWN_S)),
    )
