"""`/v1/keys`: create, list, rotate and revoke API keys; `/v1/whoami`."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from starlette.requests import Request
from starlette.responses import Response

from sluice.common.access.key_format import KEY_ID_PATTERN, generate_key_id
from sluice.common.access.record import InvalidKeySpec
from sluice.common.access.store import IssuedKey, TooManyKeys
from sluice.common.contracts.access import AuditAction, Scope
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.auth.key_models import (
    EXAMPLE_KEY,
    IssuedKeyView,
    KeyList,
    KeyRequest,
    KeyView,
    LimitsView,
    RotateRequest,
    WhoAmI,
    ordered_tasks,
)
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.problems import FieldProblem, Problem
from sluice.gateway.http.routing import JsonBody, JsonRoute
from sluice.gateway.state import state_of

_AWAY = "Redis does not answer, or the audit log cannot be written."
_UNKNOWN = "No such key."

LIST_KEYS: dict[str, Any] = {"responses": problem_responses(_503=_AWAY)}
CREATE_KEY: dict[str, Any] = {
    "responses": problem_responses(_409="The maximum number of keys exists.", _503=_AWAY)
}
READ_KEY: dict[str, Any] = {"responses": problem_responses(_404=_UNKNOWN, _503=_AWAY)}
ROTATE_KEY: dict[str, Any] = {"responses": problem_responses(_404=_UNKNOWN, _503=_AWAY)}
REVOKE_KEY: dict[str, Any] = READ_KEY


_JSON = "application/json"
#: Responses about keys must not be cached: some contain a secret.
_NO_STORE = {"Cache-Control": "no-store"}


async def _key_id_param(
    key_id: Annotated[str, Path(description="The id from the list.", examples=["k3x9q2ab"])],
) -> str:
    if not KEY_ID_PATTERN.match(key_id):
        raise _key_not_found()
    return key_id


KeyId = Annotated[str, Depends(_key_id_param)]
KeyBody = Annotated[KeyRequest, Depends(JsonBody(KeyRequest, EXAMPLE_KEY))]
RotateBody = Annotated[
    RotateRequest, Depends(JsonBody(RotateRequest, {"grace_s": 3600}, required=False))
]

router = APIRouter(route_class=JsonRoute, tags=["keys"])


@router.get("/v1/keys", response_model=KeyList, summary="List API keys", **LIST_KEYS)
async def list_keys(request: Request) -> Response:
    """Returns all keys, oldest first, without their secrets."""
    keys = state_of(request).access.keys
    used, now_ms = await keys.last_used(), _now_ms()
    items = [KeyView.of(record, used.get(record.key_id), now_ms) for record in await keys.list()]
    return Response(KeyList(items=items).model_dump_json(), 200, _NO_STORE, _JSON)


@router.post(
    "/v1/keys",
    status_code=201,
    response_model=IssuedKeyView,
    summary="Create an API key",
    **CREATE_KEY,
)
async def create_key(request: Request, body: KeyBody) -> Response:
    """Creates a key. The response contains the key itself, which is shown only once."""
    try:
        spec = body.spec()
    except InvalidKeySpec as error:
        fault = FieldProblem(pointer="", detail=str(error))
        raise Problem(422, "invalid_request", f"The key is not valid: {error}.", [fault]) from None
    access = state_of(request).access
    key_id = generate_key_id()
    await access.record(request, AuditAction.KEY_CREATE, f"{key_id} {spec.name}")
    try:
        issued = await access.keys.create(spec, key_id)
    except TooManyKeys as error:
        raise Problem(409, "too_many_keys", f"The key was not created: {error}.") from None
    access.callers.invalidate(key_id)
    return _issued(issued, 201)


@router.get("/v1/keys/{key_id}", response_model=KeyView, summary="Get an API key", **READ_KEY)
async def get_key(request: Request, key_id: KeyId) -> Response:
    """Returns a key without its secret."""
    keys = state_of(request).access.keys
    record = await keys.get(key_id)
    if record is None:
        raise _key_not_found()
    used = (await keys.last_used()).get(record.key_id)
    view = KeyView.of(record, used, _now_ms())
    return Response(view.model_dump_json(), 200, _NO_STORE, _JSON)


@router.post(
    "/v1/keys/{key_id}/rotate",
    response_model=IssuedKeyView,
    summary="Rotate the secret of an API key",
    **ROTATE_KEY,
)
async def rotate_key(request: Request, key_id: KeyId, body: RotateBody) -> Response:
    """Creates a new secret, shown only once. The previous one stays valid for `grace_s`."""
    access = state_of(request).access
    await access.record(request, AuditAction.KEY_ROTATE, key_id)
    issued = await access.keys.rotate(key_id, body.grace_s)
    access.callers.invalidate(key_id)
    if issued is None:
        raise _key_not_found()
    return _issued(issued, 200)


@router.delete("/v1/keys/{key_id}", status_code=204, summary="Revoke an API key", **REVOKE_KEY)
async def revoke_key(request: Request, key_id: KeyId) -> Response:
    """Revokes a key. Other gateways refuse it within a second."""
    access = state_of(request).access
    await access.record(request, AuditAction.KEY_REVOKE, key_id)
    revoked = await access.keys.revoke(key_id)
    access.callers.invalidate(key_id)
    if not revoked:
        raise _key_not_found()
    return Response(None, 204)


@router.get("/v1/whoami", response_model=WhoAmI, summary="Get the caller's key")
async def get_caller(request: Request) -> Response:
    """Returns the key of the request, its tenant, scopes and limits."""
    caller = caller_of(request)
    record = caller.record
    view = WhoAmI(
        key_id=caller.key_id or None,
        name=caller.name,
        tenant=caller.tenant or None,
        scopes=[scope for scope in Scope if scope.value in caller.scopes],
        tasks=ordered_tasks(caller.tasks),
        tools=None if caller.tools is None else sorted(caller.tools),
        limits=LimitsView.of(record),
        expires_ts=None if record is None else record.expires_ms,
    )
    return Response(view.model_dump_json(), 200, _NO_STORE, _JSON)


def _issued(issued: IssuedKey, status: int) -> Response:
    record = issued.record
    view = KeyView.of(record, None, _now_ms())
    body = IssuedKeyView(**view.model_dump(), key=issued.key).model_dump_json()
    headers = {**_NO_STORE, "Location": f"/v1/keys/{record.key_id}"}
    return Response(body, status, headers, _JSON)


def _key_not_found() -> Problem:
    return Problem(404, "key_not_found", "There is no such key. It may have been revoked.")


def _now_ms() -> int:
    return int(time.time() * 1000)
