"""The answer to a request that acts: sent, remembered for its repetitions, or a refusal."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.contracts.workflow.fields import WorkflowJobField
from common.contracts.workflow.operations import WorkflowFact
from common.contracts.workflow.statuses import WorkflowError
from common.errors import SluiceError
from common.features.workflows.types import IdempotencyClaim, WorkflowAnswer, WorkflowOutcome
from common.process import crashpoints
from common.process.crashpoints import CrashPoint
from gateway.auth.callers import caller_of
from gateway.features.workflows.lookup import (
    WorkflowProblem,
    workflows_of,
)
from gateway.http import paths
from gateway.http.error_formats import ErrorItem
from gateway.http.headers import REPLAYED_HEADERS, idempotency_keys
from gateway.state import state_of

_JSON: Final = "application/json"
#: Printable ASCII, spaces at the ends included.
_KEY: Final = re.compile(r"\A[\x20-\x7e]{1,255}\Z")
_MEMBER: Final = WorkflowJobField.IDEMPOTENCY_KEY
#: How long a key that we drew is remembered: as long as a script may be sent again.
RANDOM_KEY_TTL_S: Final = 60


class IdempotentRequest(NamedTuple):
    """What makes a request happen once, and the key that its client gave, if any."""

    once: IdempotencyClaim
    key: str | None


def identify_request(
    request: Request, body: Any, scope: str, claim_ms: int = 0
) -> IdempotentRequest:
    """How a request with this body is known; `scope` names what it is to change.

    Raises for a key that is none, or that differs between header and body.
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
    """The answer that a request got before; None for the first time, or where it was lost.

    Raises 409 while the first request still waits for its answer.
    """
    if not outcome.replayed:
        return None
    if outcome.status_code:
        return Response(outcome.body, outcome.status_code, REPLAYED_HEADERS, _JSON)
    if outcome.claimed_ms_left > 0:
        raise WorkflowProblem(
            409,
            WorkflowError.IN_PROGRESS,
            "The first request with this Idempotency-Key has not been answered yet. Try again "
            "soon.",
            headers={"Retry-After": "1"},
        )
    return None


def _key_of(request: Request, body: Any) -> str | None:
    found = set(idempotency_keys(request))
    member = body.get(_MEMBER) if isinstance(body, Mapping) else None
    if isinstance(member, str):  # anything else is the model's to refuse
        found.add(member)
    for key in found:
        if not _KEY.match(key):
            raise WorkflowProblem(
                400,
                WorkflowError.KEY_INVALID,
                "An Idempotency-Key is 1 to 255 printable ASCII characters, such as a UUID.",
                _MEMBER,
            )
    if len(found) > 1:
        raise WorkflowProblem(
            400,
            WorkflowError.KEY_MISMATCH,
            "The Idempotency-Key of the header and that of the body differ. Send one.",
            _MEMBER,
        )
    return next(iter(found), None)


def _fingerprint(body: Any) -> str:
    if isinstance(body, Mapping):
        body = {name: value for name, value in body.items() if name != _MEMBER}
    return hashlib.sha256(codec.dumps_canonical(body)).hexdigest()


log = logging.getLogger(__name__)

_ACCEPTED: Final = 202
#: Answers that a repetition may well get better: they are not remembered.
_TOO_MANY, _FAULT = 429, 500


class HttpAnswer(NamedTuple):
    """An answer that was found."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = {}


async def send_answer(
    request: Request,
    job_id: str,
    known: IdempotentRequest,
    made: HttpAnswer,
    outcome: WorkflowOutcome,
) -> Response:
    """Send an answer; where the client gave a key, whoever repeats the request gets the same."""
    body = codec.dumps(made.body)
    await keep_answer(request, known, made.status, body)
    headers = {**location_headers(job_id, made.status), **made.headers}
    if outcome.replayed:  # the first answer was lost, and this one made of what it was made of
        headers.update(REPLAYED_HEADERS)
    return Response(body, made.status, headers, _JSON)


async def keep_answer(request: Request, known: IdempotentRequest, status: int, body: bytes) -> None:
    """Keep an answer for repetitions. Without, they get one made of what the script found."""
    crashpoints.reach(CrashPoint.BEFORE_WORKFLOW_ANSWER)
    if known.key is None or status == _TOO_MANY or status >= _FAULT:
        return
    try:
        await workflows_of(request).store.store_answer(known.once, status, body)
    except SluiceError as error:
        log.warning("an answer is not kept for its repetitions: %s", error)


async def forget_answer(request: Request, known: IdempotentRequest) -> None:
    """Let a repetition be a first time: nothing came of the request."""
    if known.key is None:
        return
    try:
        await workflows_of(request).store.forget_answer(known.once)
    except SluiceError as error:
        log.warning("an answer is kept although nothing came of it: %s", error)


def replay_answer(job_id: str, status: int, body: bytes) -> Response:
    headers = {**location_headers(job_id, status), **REPLAYED_HEADERS}
    return Response(body, status, headers, _JSON)


def location_headers(job_id: str, status: int = _ACCEPTED) -> dict[str, str]:
    """Where to look for what is not in the answer yet."""
    if status != _ACCEPTED:
        return {}
    stream = paths.WORKFLOW_STREAM.replace("{job_id}", job_id)
    return {
        "Location": paths.workflow_status_url(job_id),
        "Link": f'<{stream}>; rel="monitor"',
        "Retry-After": "1",
    }


def raise_if_refused(outcome: WorkflowOutcome) -> None:
    """Raise where the script refused, or missed something of the job."""
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
    """Why a script did nothing, and what to do about it."""
    status, words = _REFUSALS.get(code, (409, "The job is not in a state for this."))
    told = {name: facts[name] for name in _REFUSAL_FACTS if facts.get(name)}
    message = words.format_map({**dict.fromkeys(_REFUSAL_FACTS, "?"), **told})
    if WorkflowFact.TOKEN in told:
        message = f"{message} Undo {told[WorkflowFact.TOKEN]} first."
    named = [
        ErrorItem(code=code.value, message=message, item_id=str(item))
        for item in told.get(WorkflowFact.ITEMS, ())
    ]
    return WorkflowProblem(
        status, code, message, item_id=item_id, extra={**told, **(extra or {})}, more=named
    )


def _code(raw: object, default: WorkflowError) -> WorkflowError:
    try:
        return WorkflowError(raw)
    except ValueError:
        return default


#: What a refusal tells of what the script found.
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
    WorkflowError.ITEM_NOT_FOUND: (404, "The job has no such item (any more)."),
    WorkflowError.STEP_IN_PROGRESS: (
        409,
        "Step '{step}' runs already, as {execution_id}. Wait for its end, or cancel the job.",
    ),
    WorkflowError.STEP_OUT_OF_ORDER: (
        409,
        "Earlier steps are not complete, first of all '{step}'. Execute them, or leave out "
        "`strict`.",
    ),
    WorkflowError.REVIEW_REQUIRED: (
        409,
        "The review '{step}' is not complete, and nothing jumps over it. Decide on the proposals "
        "first.",
    ),
    WorkflowError.JOB_TERMINAL: (
        409,
        "The job has ended: nothing of it can be executed, decided or cancelled any more.",
    ),
    WorkflowError.NOT_REVIEWABLE: (
        409,
        "The proposals cannot be changed now: they are not there yet, are being applied, or the "
        "job has ended.",
    ),
    WorkflowError.WOULD_DISCARD: (
        409,
        "To execute the step again would drop decisions and edits. Say `discard_decisions` if "
        "that is meant.",
    ),
    WorkflowError.VERSION_CONFLICT: (
        409,
        "The item has changed meanwhile. Read it again, and decide on its new version.",
    ),
    WorkflowError.UNKNOWN_UNDO: (
        404,
        "There is nothing to undo by this token: it was used, has been dropped, or never was.",
    ),
    WorkflowError.UNDO_CONFLICT: (
        409,
        "Something has changed since, so it cannot be undone. Nothing was changed.",
    ),
}
