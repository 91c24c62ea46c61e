"""Requests of the dashboard's own pages: told by their headers, bounded, and written down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.types import Scope

from common.contracts.access import AuditAction
from common.errors import SluiceError
from gateway.auth.access import Access
from gateway.dashboard.sessions import Session
from gateway.http.paths import DASHBOARD_SESSION
from gateway.http.problems import Problem, problem_of
from gateway.http.security import is_mutating, is_same_origin

COOKIE: Final = "sluice_session"
#: What pages of the dashboard send along: no form and no plain link of another page can.
PAGE_HEADER: Final = b"x-sluice-ui"
#: Where the guard leaves the session for the routes.
SCOPE_KEY: Final = "sluice.session"
_SAME_ORIGIN_FETCHES = (b"same-origin", b"none")
#: What of a path the trail shows as it is. A line's end in it would look like another's deed.
_PLAIN: Final = "/:@!$&'()*+,;=~"


class Credentials(NamedTuple):
    """What a request shows of who sends it."""

    keys: list[bytes]
    cookie: str
    #: Whether it says that it comes from a page of the dashboard.
    from_dashboard: bool


def credentials_in(headers: Iterable[tuple[bytes, bytes]]) -> Credentials:
    """In one pass: this is on the way of every request."""
    keys: list[bytes] = []
    cookies = b""
    by_page = False
    for name, value in headers:
        if name == b"authorization":
            keys.append(value)
        elif name == b"cookie":
            cookies += b";" + value
        elif name == PAGE_HEADER:
            by_page = True
    return Credentials(keys, _cookie_in(cookies) if cookies else "", by_page)


def is_same_origin_fetch(scope: Scope) -> bool:
    """Whether a page of ours sends it, or nobody's, as far as the browser tells."""
    fetched = _header(scope, b"sec-fetch-site")
    return fetched is None or fetched in _SAME_ORIGIN_FETCHES


async def check_allowed(
    scope: Scope, shown: Credentials, session: Session | None, access: Access, *, read_only: bool
) -> None:
    """A Problem where a page must not do this; else it is on the trail, before it is done."""
    signing = scope["path"] == DASHBOARD_SESSION
    if not is_mutating(scope) or not (session or shown.from_dashboard or signing):
        return
    if (session or signing) and not (shown.from_dashboard and _is_verified_same_origin(scope)):
        raise Problem(
            403,
            "not_from_dashboard",
            "A session changes something only from the dashboard's own pages, which send "
            "X-Sluice-UI and the browser's word that they are from here. Programs send a key.",
        )
    if signing:
        return
    if read_only:
        raise Problem(
            403,
            "dashboard_read_only",
            "This dashboard only shows (DASHBOARD=read-only). Use the API or the command line.",
        )
    if session is not None and not session.actions:
        raise Problem(
            403,
            "session_read_only",
            "This session only looks. To change something, sign in again and allow actions.",
        )
    target = f"{scope['method']} {quote(scope['path'], safe=_PLAIN)}"
    try:
        await access.record(Request(scope), AuditAction.UI_ACTION, target)
    except SluiceError as error:
        raise problem_of(error) or error from None


def _is_verified_same_origin(scope: Scope) -> bool:
    """Every browser says one of the two of what is not plainly safe."""
    fetched, origin = _header(scope, b"sec-fetch-site"), _header(scope, b"origin")
    if fetched is not None and fetched != b"same-origin":
        return False
    if origin is None:
        return fetched is not None
    return is_same_origin(origin, _header(scope, b"host") or b"")


def _header(scope: Scope, wanted: bytes) -> bytes | None:
    for name, value in scope["headers"]:
        if name == wanted:
            found: bytes = value
            return found
    return None


def _cookie_in(cookies: bytes) -> str:
    for pair in cookies.split(b";"):
        name, _, value = pair.strip().partition(b"=")
        if name == COOKIE.encode():
            return value.decode("latin-1")
    return ""
