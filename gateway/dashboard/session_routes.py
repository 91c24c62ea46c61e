"""`/ui/session`: signing in to the dashboard with an API key, and out again."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from common.contracts.access import KEY_PREFIX, AuditAction, Scope
from gateway.auth.callers import SCOPE_KEY, Caller, caller_of
from gateway.auth.middleware import invalid_key
from gateway.dashboard import request_checks
from gateway.dashboard.models import SessionView, SignInRequest
from gateway.dashboard.sessions import SESSION_TTL_S, Session
from gateway.http import problems
from gateway.http.body import read_json
from gateway.http.openapi.schema import (
    direct_route,
    header_parameter,
    problem_responses,
    request_body,
)
from gateway.http.paths import DASHBOARD_SESSION
from gateway.http.problems import Problem
from gateway.state import state_of

_EXAMPLE = {"key": f"{KEY_PREFIX}k3x9q2ab_…", "actions": False}
_PAGE = header_parameter("X-Sluice-UI", "Needed: what pages of the dashboard send.", "1")
_FOREIGN = "It does not come from a page of the dashboard, or the key has not the scope `ui`."

READ_SESSION: dict[str, Any] = {
    "responses": problem_responses(_503="Redis does not answer."),
}
SIGN_IN: dict[str, Any] = {
    "openapi_extra": {"parameters": [_PAGE], "requestBody": request_body(SignInRequest, _EXAMPLE)},
    "responses": {
        200: {"description": "Signed in; the cookie lasts eight hours."},
        **problem_responses(
            _400="The body is not JSON.",
            _401="The key is not valid.",
            _403=_FOREIGN,
            _415="The body is declared as something else.",
            _422="The request does not fit the schema.",
            _503="Redis does not answer.",
        ),
    },
}
SIGN_OUT: dict[str, Any] = {
    "openapi_extra": {"parameters": [_PAGE]},
    "responses": {
        204: {"description": "Nobody is signed in any more."},
        **problem_responses(_403=_FOREIGN, _503="Redis does not answer."),
    },
}


_JSON = "application/json"
_NO_STORE = {"Cache-Control": "no-store"}

router = APIRouter(route_class=direct_route(APIRoute), tags=["dashboard"])


@router.get(
    DASHBOARD_SESSION,
    response_model=SessionView,
    summary="Whom does this page speak for?",
    **READ_SESSION,
)
async def read_session(request: Request) -> Response:
    """Who is signed in here, and what its pages may do. Answers everybody."""
    session: Session | None = request.scope.get(request_checks.SCOPE_KEY)
    return _session_response(request, caller_of(request), session)


@router.post(
    DASHBOARD_SESSION, response_model=SessionView, summary="Sign in to the dashboard", **SIGN_IN
)
async def sign_in(request: Request) -> Response:
    """A session for whoever shows a key with the scope `ui`; the answer sets its cookie."""
    try:
        wanted = SignInRequest.model_validate(await read_json(request))
    except ValidationError as error:
        raise problems.validation_problem(error) from None
    state = state_of(request)
    access = state.access
    caller = await access.callers.identify(wanted.key.get_secret_value().strip())
    if caller is None:
        raise invalid_key("The API key is not valid: mistyped, expired or revoked.")
    if not caller.may(Scope.UI):
        raise Problem(
            403,
            "insufficient_scope",
            "This API key is not for the dashboard: it has neither the scope ui nor admin.",
        )
    request.scope[SCOPE_KEY] = caller
    await access.record(request, AuditAction.UI_ACTION, f"POST {DASHBOARD_SESSION}")
    actions = wanted.actions and state.settings.dashboard == "on"
    session, cookie = await access.sessions.begin(caller.key_id, caller.digest, actions=actions)
    answer = _session_response(request, caller, session)
    _set_cookie(request, answer, cookie, SESSION_TTL_S)
    return answer


@router.delete(DASHBOARD_SESSION, status_code=204, summary="Sign out of the dashboard", **SIGN_OUT)
async def sign_out(request: Request) -> Response:
    """End the session, here and in Redis. Without one there is nothing to end, which is fine."""
    session: Session | None = request.scope.get(request_checks.SCOPE_KEY)
    if session is not None:
        await state_of(request).access.sessions.end(session)
    answer = Response(None, 204)
    _set_cookie(request, answer, "", 0)
    return answer


def _session_response(request: Request, caller: Caller, session: Session | None) -> Response:
    """What the page is to know of itself. Who has no key and needs none is the operator."""
    changing = session.actions if session is not None else bool(caller.scopes)
    actions = changing and state_of(request).settings.dashboard == "on"
    expires_ms = None if session is None else session.expires_ms
    view = SessionView.of(caller, actions=actions, expires_ms=expires_ms)
    return Response(view.model_dump_json(), 200, _NO_STORE, _JSON)


def _set_cookie(request: Request, answer: Response, cookie: str, life_s: int) -> None:
    """Out of reach for scripts and for other sites; over TLS only where there is TLS."""
    origin = request.headers.get("origin", "")
    secure = request.url.scheme == "https" or origin.startswith("https://")
    answer.set_cookie(
        request_checks.COOKIE,
        cookie,
        max_age=life_s,
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )
