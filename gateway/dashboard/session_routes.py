"""`/ui/session`: sign in to the dashboard with an API key, read the session, sign out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header
from starlette.requests import Request
from starlette.responses import Response

from sluice.common.contracts.access import KEY_PREFIX, AuditAction, Scope
from sluice.gateway.auth.callers import SCOPE_KEY, Caller, caller_of
from sluice.gateway.auth.middleware import invalid_key
from sluice.gateway.dashboard import request_checks
from sluice.gateway.dashboard.models import SessionView, SignInRequest
from sluice.gateway.dashboard.sessions import MAX_SIGN_INS, SESSION_TTL_S, Session
from sluice.gateway.http.headers import text_schema
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.paths import DASHBOARD_SESSION
from sluice.gateway.http.problems import Problem, retry_headers
from sluice.gateway.http.routing import JsonBody, JsonRoute, declare
from sluice.gateway.state import state_of

_EXAMPLE = {"key": f"{KEY_PREFIX}k3x9q2ab_…", "actions": False}
#: `request_checks` reads it before the route is called.
_PAGE = declare(
    x_sluice_ui=Annotated[
        str | None,
        Header(alias="X-Sluice-UI", description="Required. Dashboard pages send it."),
        text_schema("1"),
    ]
)
SignInBody = Annotated[SignInRequest, Depends(JsonBody(SignInRequest, _EXAMPLE))]
_FORBIDDEN = "The request does not come from a dashboard page, or the key lacks the scope `ui`."

READ_SESSION: dict[str, Any] = {
    "responses": problem_responses(_503="Redis does not answer."),
}
SIGN_IN: dict[str, Any] = {
    "dependencies": [_PAGE],
    "responses": {
        200: {"description": "Signed in. The cookie is valid for eight hours."},
        **problem_responses(
            _401="The key is not valid.",
            _403=_FORBIDDEN,
            _503="Redis does not answer, or too many clients are signing in.",
        ),
    },
}
SIGN_OUT: dict[str, Any] = {
    "dependencies": [_PAGE],
    "responses": {
        204: {"description": "Signed out."},
        **problem_responses(_403=_FORBIDDEN, _503="Redis does not answer."),
    },
}


_JSON = "application/json"
_NO_STORE = {"Cache-Control": "no-store"}

router = APIRouter(route_class=JsonRoute, tags=["dashboard"])


async def _sign_in_slot(request: Request) -> AsyncIterator[None]:
    """Count the sign-in from before its body is read until it is answered."""
    sessions = state_of(request).access.sessions
    if sessions.sign_ins >= MAX_SIGN_INS:
        raise Problem(
            503,
            "too_many_sign_ins",
            f"{sessions.sign_ins} clients are signing in to the dashboard, the maximum. Try again.",
            headers=retry_headers(2.0),
        )
    sessions.sign_ins += 1
    try:
        yield
    finally:
        sessions.sign_ins -= 1


SignInSlot = Annotated[None, Depends(_sign_in_slot)]


@router.get(
    DASHBOARD_SESSION,
    response_model=SessionView,
    summary="Read the session",
    **READ_SESSION,
)
async def read_session(request: Request) -> Response:
    """Returns the signed-in key and what its pages may do. Needs no API key."""
    session: Session | None = request.scope.get(request_checks.SCOPE_KEY)
    return _session_response(request, caller_of(request), session)


@router.post(
    DASHBOARD_SESSION, response_model=SessionView, summary="Sign in to the dashboard", **SIGN_IN
)
async def sign_in(request: Request, slot: SignInSlot, body: SignInBody) -> Response:
    """Creates a session for an API key with the scope `ui`. The response sets the cookie."""
    state = state_of(request)
    access = state.access
    caller = await access.callers.identify(body.key.get_secret_value().strip())
    if caller is None:
        raise invalid_key("The API key is not valid: mistyped, expired or revoked.")
    if not caller.may(Scope.UI):
        raise Problem(
            403,
            "insufficient_scope",
            "This API key cannot sign in to the dashboard: it needs the scope ui or admin.",
        )
    request.scope[SCOPE_KEY] = caller
    await access.record(request, AuditAction.UI_ACTION, f"POST {DASHBOARD_SESSION}")
    actions = body.actions and state.settings.dashboard == "on"
    session, cookie = await access.sessions.begin(caller.key_id, caller.digest, actions=actions)
    answer = _session_response(request, caller, session)
    _set_cookie(request, answer, cookie, SESSION_TTL_S)
    return answer


@router.delete(DASHBOARD_SESSION, status_code=204, summary="Sign out of the dashboard", **SIGN_OUT)
async def sign_out(request: Request) -> Response:
    """Ends the session in the browser and in Redis. Succeeds if there is no session."""
    session: Session | None = request.scope.get(request_checks.SCOPE_KEY)
    if session is not None:
        await state_of(request).access.sessions.end(session)
    answer = Response(None, 204)
    _set_cookie(request, answer, "", 0)
    return answer


def _session_response(request: Request, caller: Caller, session: Session | None) -> Response:
    """Render the session. A local caller without a key is the operator, and may act."""
    may_act = session.actions if session is not None else bool(caller.scopes)
    actions = may_act and state_of(request).settings.dashboard == "on"
    expires_ms = None if session is None else session.expires_ms
    view = SessionView.of(caller, actions=actions, expires_ms=expires_ms)
    return Response(view.model_dump_json(), 200, _NO_STORE, _JSON)


def _set_cookie(request: Request, answer: Response, cookie: str, max_age_s: int) -> None:
    """Set the cookie HttpOnly and SameSite=Strict; Secure if the page was served over TLS."""
    origin = request.headers.get("origin", "")
    secure = request.url.scheme == "https" or origin.startswith("https://")
    answer.set_cookie(
        request_checks.COOKIE,
        cookie,
        max_age=max_age_s,
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )
