"""`/v1/keys`: making, listing, rotating and revoking API keys; `/v1/whoami`."""

from __future__ import annotations

import time

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from common.access import Issued, TooManyKeys
from common.access_record import BadKey
from common.access_text import KEY_ID, new_id
from common.contracts.access import Scope, TrailAction
from gateway import problems
from gateway.callers import caller_of
from gateway.json_body import read_json, read_json_if_any
from gateway.key_models import (
    KeyIssued,
    KeyList,
    KeyRequest,
    KeyView,
    LimitsView,
    RotateRequest,
    WhoAmI,
    tasks_of,
)
from gateway.openapi import direct_route
from gateway.openapi_keys import CREATE_KEY, LIST_KEYS, READ_KEY, REVOKE_KEY, ROTATE_KEY
from gateway.problems import FieldProblem, Problem
from gateway.state import state_of

_JSON = "application/json"
#: Answers about keys are nobody else's business, and those with a secret least of all.
_NO_STORE = {"Cache-Control": "no-store"}

router = APIRouter(route_class=direct_route(APIRoute), tags=["keys"])


@router.get("/v1/keys", response_model=KeyList, summary="List API keys", **LIST_KEYS)
async def list_keys(request: Request) -> Response:
    """Every key, oldest first, without its secret."""
    keys = state_of(request).access.keys
    used, now_ms = await keys.last_used(), _now_ms()
    items = [KeyView.of(record, used.get(record.key_id), now_ms) for record in await keys.list()]
    return Response(KeyList(items=items).model_dump_json(), 200, _NO_STORE, _JSON)


@router.post(
    "/v1/keys",
    status_code=201,
    response_model=KeyIssued,
    summary="Make an API key",
    **CREATE_KEY,
)
async def create_key(request: Request) -> Response:
    """A new key. The answer has its text, which is shown this once."""
    try:
        spec = KeyRequest.model_validate(await read_json(request)).spec()
    except ValidationError as error:
        raise problems.misfit(error) from None
    except BadKey as error:
        fault = FieldProblem(pointer="", detail=str(error))
        raise Problem(422, "invalid_request", f"This cannot be: {error}.", [fault]) from None
    access = state_of(request).access
    key_id = new_id()
    await access.write_down(request, TrailAction.KEY_CREATE, f"{key_id} {spec.name}")
    try:
        issued = await access.keys.create(spec, key_id)
    except TooManyKeys as error:
        raise Problem(409, "too_many_keys", f"It was not made: {error}.") from None
    access.callers.forget(key_id)
    return _issued(issued, 201)


@router.get("/v1/keys/{key_id}", response_model=KeyView, summary="Read an API key", **READ_KEY)
async def read_key(request: Request) -> Response:
    """One key, without its secret."""
    keys = state_of(request).access.keys
    record = await keys.get(_checked(request))
    if record is None:
        raise _no_such_key()
    used = (await keys.last_used()).get(record.key_id)
    view = KeyView.of(record, used, _now_ms())
    return Response(view.model_dump_json(), 200, _NO_STORE, _JSON)


@router.post(
    "/v1/keys/{key_id}/rotate",
    response_model=KeyIssued,
    summary="Give an API key a new secret",
    **ROTATE_KEY,
)
async def rotate_key(request: Request) -> Response:
    """A new secret, shown this once; the one before stays good for `grace_s`."""
    key_id = _checked(request)
    try:
        wanted = RotateRequest.model_validate(await read_json_if_any(request))
    except ValidationError as error:
        raise problems.misfit(error) from None
    access = state_of(request).access
    await access.write_down(request, TrailAction.KEY_ROTATE, key_id)
    issued = await access.keys.rotate(key_id, wanted.grace_s)
    access.callers.forget(key_id)
    if issued is None:
        raise _no_such_key()
    return _issued(issued, 200)


@router.delete("/v1/keys/{key_id}", status_code=204, summary="Revoke an API key", **REVOKE_KEY)
async def revoke_key(request: Request) -> Response:
    """From now on nobody gets in by it: other gateways know within a second."""
    key_id = _checked(request)
    access = state_of(request).access
    await access.write_down(request, TrailAction.KEY_REVOKE, key_id)
    revoked = await access.keys.revoke(key_id)
    access.callers.forget(key_id)
    if not revoked:
        raise _no_such_key()
    return Response(None, 204)


@router.get("/v1/whoami", response_model=WhoAmI, summary="Who am I?")
async def whoami(request: Request) -> Response:
    """Whom the gateway takes you for, and what you may do."""
    caller = caller_of(request)
    record = caller.record
    view = WhoAmI(
        key_id=caller.key_id or None,
        name=caller.name,
        tenant=caller.tenant or None,
        scopes=[scope for scope in Scope if scope.value in caller.scopes],
        tasks=tasks_of(caller.tasks),
        tools=None if caller.tools is None else sorted(caller.tools),
        limits=LimitsView.of(record),
        expires_ts=None if record is None else record.expires_ms,
    )
    return Response(view.model_dump_json(), 200, _NO_STORE, _JSON)


def _issued(issued: Issued, status: int) -> Response:
    record = issued.record
    view = KeyView.of(record, None, _now_ms())
    body = KeyIssued(**view.model_dump(), key=issued.key).model_dump_json()
    headers = {**_NO_STORE, "Location": f"/v1/keys/{record.key_id}"}
    return Response(body, status, headers, _JSON)


def _checked(request: Request) -> str:
    key_id: str = request.path_params["key_id"]
    if not KEY_ID.match(key_id):
        raise _no_such_key()
    return key_id


def _no_such_key() -> Problem:
    return Problem(404, "key_not_found", "There is no such key. It may have been revoked.")


def _now_ms() -> int:
    return int(time.time() * 1000)
