"""`/ui/session`: signing in to the dashboard with an API key, and out again."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from common.contracts.access import Scope, TrailAction
from gateway import problems
from gateway.callers import SCOPE_KEY, Caller, caller_of
from gateway.dashboard import visits
from gateway.dashboard.models import SessionView, SignIn
from gateway.dashboard.paths import SESSION
from gateway.dashboard.sessions import LIFE_S, Session
from gateway.guard import bad_key
from gateway.json_body import read_json
from gateway.openapi import direct_route
from gateway.openapi_ui import READ_SESSION, SIGN_IN, SIGN_OUT
from gateway.problems import Problem
from gateway.state import state_of

_JSON = "application/json"
_NO_STORE = {"Cache-Control": "no-store"}

router = APIRouter(route_class=direct_route(APIRoute), tags=["dashboard"])


@router.get(
    SESSION, response_model=SessionView, summary="Whom does this page speak for?", **READ_SESSION
)
async def read_session(request: Request) -> Response:
    """Who is signed in here, and what its pages may do. Answers everybody."""
    session: Session | None = request.scope.get(visits.SCOPE_KEY)
    return _told(request, caller_of(request), session)


@router.post(SESSION, response_model=SessionView, summary="Sign in to the dashboard", **SIGN_IN)
async def sign_in(request: Request) -> Response:
    """A session for whoever shows a key with the scope `ui`; the answer sets its cookie."""
    try:
        wanted = SignIn.model_validate(await read_json(request))
    except ValidationError as error:
        raise problems.misfit(error) from None
    state = state_of(request)
    access = state.access
    caller = await access.callers.identify(wanted.key.get_secret_value().strip())
    if caller is None:
        raise bad_key("The API key is not valid: mistyped, expired or revoked.")
    if not caller.may(Scope.UI):
        raise Problem(
            403,
            "insufficient_scope",
            "This API key is not for the dashboard: it has neither the scope ui nor admin.",
        )
    request.scope[SCOPE_KEY] = caller
    await access.write_down(request, TrailAction.UI_ACTION, f"POST {SESSION}")
    actions = wanted.actions and state.settings.dashboard == "on"
    session, cookie = await access.sessions.begin(caller.key_id, caller.digest, actions=actions)
    answer = _told(request, caller, session)
    _set_cookie(request, answer, cookie, LIFE_S)
    return answer


@router.delete(SESSION, status_code=204, summary="Sign out of the dashboard", **SIGN_OUT)
async def sign_out(request: Request) -> Response:
    """End the session, here and in Redis. Without one there is nothing to end, which is fine."""
    session: Session | None = request.scope.get(visits.SCOPE_KEY)
    if session is not None:
        await state_of(request).access.sessions.end(session)
    answer = Response(None, 204)
    _set_cookie(request, answer, "", 0)
    return answer


def _told(request: Request, caller: Caller, session: Session | None) -> Response:
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
        visits.COOKIE,
        cookie,
        max_age=life_s,
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )
