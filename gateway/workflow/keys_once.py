"""From an Idempotency-Key, in a header or in the body, to what makes a request happen once."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.contracts.workflow import JobHash, WorkflowError
from common.workflow.types import Once, Outcome
from gateway.callers import caller_of
from gateway.state import state_of
from gateway.workflow.envelope import WorkflowProblem

REPLAYED: Final = "Idempotency-Replayed"
_JSON: Final = "application/json"
_HEADER: Final = "idempotency-key"
_KEY: Final = re.compile(r"\A[\x20-\x7e]{1,255}\Z")
_MEMBER: Final = JobHash.IDEMPOTENCY_KEY.value
#: How long a key that we drew is remembered: as long as a script may be sent again.
DRAWN_TTL_S: Final = 60


class Keyed(NamedTuple):
    """What makes a request happen once, and the key that its client gave, if any."""

    once: Once
    key: str | None


def keyed(request: Request, body: Any, scope: str, claim_ms: int = 0) -> Keyed:
    """How a request with this body is known; `scope` names what it is to change.

    Raises for a key that is none, or that differs between header and body.
    """
    key = _key_of(request, body)
    fingerprint = _fingerprint(body)
    tenant = caller_of(request).tenant
    keys = state_of(request).workflows.keys
    if key is None:
        name = keys.answer(scope, os.urandom(16).hex(), tenant)
        return Keyed(Once(name, fingerprint, DRAWN_TTL_S, 0), None)
    ttl_s = state_of(request).settings.workflow_idempotency_ttl_s
    return Keyed(Once(keys.answer(scope, key, tenant), fingerprint, ttl_s, claim_ms), key)


def replay_of(outcome: Outcome) -> Response | None:
    """The answer that a request got before; None for the first time, or where it was lost.

    Raises 409 while the first request still waits for its answer.
    """
    if not outcome.replayed:
        return None
    if outcome.status_code:
        return Response(outcome.body, outcome.status_code, {REPLAYED: "true"}, _JSON)
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
    found = {_unquoted(raw) for raw in request.headers.getlist(_HEADER)}
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


def _unquoted(raw: str) -> str:
    """The quotes of a structured header are not part of the key."""
    return raw[1:-1] if len(raw) > 1 and raw[0] == raw[-1] == '"' else raw


def _fingerprint(body: Any) -> str:
    if isinstance(body, Mapping):
        body = {name: value for name, value in body.items() if name != _MEMBER}
    return hashlib.sha256(codec.dumps_canonical(body)).hexdigest()
