"""Idempotent requests of the workflow API: keys, stored responses, and refusals by scripts."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.contracts.workflow.fields import WorkflowJobField
from sluice.common.contracts.workflow.operations import WorkflowFact
from sluice.common.contracts.workflow.statuses import WorkflowError
from sluice.common.errors import SluiceError
from sluice.common.features.workflows.types import IdempotencyClaim, WorkflowAnswer, WorkflowOutcome
from sluice.common.process import crashpoints
from sluice.common.process.crashpoints import CrashPoint
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.features.workflows.lookup import (
    WorkflowProblem,
    workflows_of,
)
from sluice.gateway.http import paths
from sluice.gateway.http.error_formats import ErrorItem
from sluice.gateway.http.headers import REPLAYED_HEADERS, idempotency_keys
from sluice.gateway.state import state_of

_JSON: Final = "application/json"
#: Printable ASCII; spaces are allowed at the ends.
_KEY: Final = re.compile(r"\A[\x20-\x7e]{1,255}\Z")
_MEMBER: Final = WorkflowJobField.IDEMPOTENCY_KEY
#: Lifetime of a random key for requests without one: as long as a script may be retried.
RANDOM_KEY_TTL_S: Final = 60


class IdempotentRequest(NamedTuple):
    """The claim that makes a request idempotent, and the client's key, if any."""

    once: IdempotencyClaim
    key: str | None


def identify_request(
    request: Request, body: Any, scope: str, claim_ms: int = 0
) -> IdempotentRequest:
    """Identify a request by its key and body. `scope` names what it changes.

    Raises a problem for an invalid key, or if those of header and body differ.
    """
    key = _key_of(request, body)
    fingerprint = _fingerprint(body)
    tenant = caller_of(request).tenant
    keys = workflows_of(request).store.keys
    if key is None:
        name = keys.answer(scope, os.urandom(16).hex(), tenant)
        return IdempotentRequest(IdempotencyClaim(name, fingerprint, RANDOM_KEY_TTL_S, 0), None)
    ttl_s = state_of(request).settings.workflow_idempotency_ttl_s
    return IdempotentRequest(
        IdempotencyClaim(keys.answer(scope, key, tenant), fingerprint, ttl_s, claim_ms), key
    )


def find_replay(outcome: WorkflowOutcome) -> Response | None:
    """The stored response to a repeated request; None for the first one, or if it was lost.

    Raises 409 while the first request is being processed.
    """
    if not outcome.replayed:
        return None
    if outcome.status_code:
        return Response(outcome.body, outcome.status_code, REPLAYED_HEADERS, _JSON)
    if outcome.claimed_ms_left > 0:
        raise WorkflowProblem(
            409,
            WorkflowError.IN_PROGRESS,
            "The first request with this Idempotency-Key is still being processed. Try again soon.",
            headers={"Retry-After": "1"},
        )
    return None


def _key_of(request: Request, body: Any) -> str | None:
    found = set(idempotency_keys(request))
    member = body.get(_MEMBER) if isinstance(body, Mapping) else None
    if isinstance(member, str):  # other types are refused by validation
        found.add(member)
    for key in found:
        if not _KEY.match(key):
            raise WorkflowProblem(
                400,
                WorkflowError.KEY_INVALID,
                "Idempotency-Key must be 1 to 255 printable ASCII characters, such as a UUID.",
                _MEMBER,
            )
    if len(found) > 1:
        raise WorkflowProblem(
            400,
            WorkflowError.KEY_MISMATCH,
            "The Idempotency-Key in the header differs from that in the body. Send one.",
            _MEMBER,
        )
    return next(iter(found), None)


def _fingerprint(body: Any) -> str:
    if isinstance(body, Mapping):
        body = {name: value for name, value in body.items() if name != _MEMBER}
    return hashlib.sha256(codec.dumps_canonical(body)).hexdigest()


log = logging.getLogger(__name__)

_ACCEPTED: Final = 202
#: Responses with these statuses are not stored: a repeated request may succeed.
_TOO_MANY, _FAULT = 429, 500


class HttpAnswer(NamedTuple):
    """A response before it is sent."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = {}


async def send_answer(
    request: Request,
    job_id: str,
    known: IdempotentRequest,
    answer: HttpAnswer,
    outcome: WorkflowOutcome,
) -> Response:
    """The response, stored for repeated requests if the client gave a key."""
    body = codec.dumps(answer.body)
    await keep_answer(request, known, answer.status, body)
    headers = {**location_headers(job_id, answer.status), **answer.headers}
    if outcome.replayed:  # the stored response was lost; this one is rendered from the same outcome
        headers.update(REPLAYED_HEADERS)
    return Response(body, answer.status, headers, _JSON)


async def keep_answer(request: Request, known: IdempotentRequest, status: int, body: bytes) -> None:
    """Store a response for repeated requests. If that fails, theirs is rendered again."""
    crashpoints.reach(CrashPoint.BEFORE_WORKFLOW_ANSWER)
    if known.key is None or status == _TOO_MANY or status >= _FAULT:
        return
    try:
        await workflows_of(request).store.store_answer(known.once, status, body)
    except SluiceError as error:
        log.warning("response not stored for repeated requests: %s", error)


async def forget_answer(request: Request, known: IdempotentRequest) -> None:
    """Delete the claim of a request that had no effect, so that it can be repeated."""
    if known.key is None:
        return
    try:
        await workflows_of(request).store.forget_answer(known.once)
    except SluiceError as error:
        log.warning("claim of a request without effect not deleted: %s", error)


def replay_answer(job_id: str, status: int, body: bytes) -> Response:
    headers = {**location_headers(job_id, status), **REPLAYED_HEADERS}
    return Response(body, status, headers, _JSON)


def location_headers(job_id: str, status: int = _ACCEPTED) -> dict[str, str]:
    """Headers of a 202 response: where to read and watch the job."""
    if status != _ACCEPTED:
        return {}
    stream = paths.WORKFLOW_STREAM.replace("{job_id}", job_id)
    return {
        "Location": paths.workflow_status_url(job_id),
        "Link": f'<{stream}>; rel="monitor"',
        "Retry-After": "1",
    }


def raise_if_refused(outcome: WorkflowOutcome) -> None:
    """Raise the problem of a script that refused the request or did not find something."""
    facts = outcome.facts
    if outcome.answer is WorkflowAnswer.REFUSED:
        raise refusal(_code(facts.get(WorkflowFact.CODE), WorkflowError.JOB_TERMINAL), facts)
    if outcome.answer is WorkflowAnswer.MISSING:
        raise refusal(_code(facts.get(WorkflowFact.WHAT), WorkflowError.NOT_FOUND), facts)


def refusal(
    code: WorkflowError,
    facts: Mapping[str, Any],
    item_id: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> WorkflowProblem:
    """The problem of a refusal by a script."""
    status, words = _REFUSALS.get(code, (409, "The job is not in a suitable state."))
    known = {name: facts[name] for name in _REFUSAL_FACTS if facts.get(name)}
    message = words.format_map({**dict.fromkeys(_REFUSAL_FACTS, "?"), **known})
    if WorkflowFact.TOKEN in known:
        message = f"{message} Undo {known[WorkflowFact.TOKEN]} first."
    named = [
        ErrorItem(code=code.value, message=message, item_id=str(item))
        for item in known.get(WorkflowFact.ITEMS, ())
    ]
    return WorkflowProblem(
        status, code, message, item_id=item_id, extra={**known, **(extra or {})}, more=named
    )


def _code(raw: object, default: WorkflowError) -> WorkflowError:
    try:
        return WorkflowError(raw)
    except ValueError:
        return default


#: Facts that a refusal includes.
_REFUSAL_FACTS: Final = (
    WorkflowFact.STEP,
    WorkflowFact.EXECUTION_ID,
    WorkflowFact.ITEMS,
    WorkflowFact.PENDING,
    WorkflowFact.TOKEN,
)
_REFUSALS: Final = {
    WorkflowError.NOT_FOUND: (404, "There is no such workflow job; see WORKFLOW_TTL_S."),
    WorkflowError.UNKNOWN_STEP: (422, "The workflow has no such step."),
    WorkflowError.ITEM_NOT_FOUND: (404, "The job has no such item."),
    WorkflowError.STEP_IN_PROGRESS: (
        409,
        "Step '{step}' is already running as {execution_id}. Wait for its end, or cancel the job.",
    ),
    WorkflowError.STEP_OUT_OF_ORDER: (
        409,
        "Earlier steps are not complete; the first is '{step}'. Execute them, or leave out "
        "`strict`.",
    ),
    WorkflowError.REVIEW_REQUIRED: (
        409,
        "The review '{step}' is not complete and cannot be skipped. Decide on the proposals first.",
    ),
    WorkflowError.JOB_TERMINAL: (
        409,
        "The job has ended: it cannot be executed, decided on or cancelled any more.",
    ),
    WorkflowError.NOT_REVIEWABLE: (
        409,
        "The proposals cannot be changed now: they do not exist yet, are being applied, or the job "
        "has ended.",
    ),
    WorkflowError.WOULD_DISCARD: (
        409,
        "Executing the step again would discard decisions and edits. Set `discard_decisions` to "
        "do so.",
    ),
    WorkflowError.VERSION_CONFLICT: (
        409,
        "The item has changed meanwhile. Read it again and decide on its new version.",
    ),
    WorkflowError.UNKNOWN_UNDO: (
        404,
        "This token cannot undo anything: it was used, has been dropped, or never existed.",
    ),
    WorkflowError.UNDO_CONFLICT: (
        409,
        "It cannot be undone: something has changed since. Nothing was changed.",
    ),
}
