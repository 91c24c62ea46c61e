"""Checks on requests from dashboard pages: credentials, same origin, read-only mode, auditing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.types import Scope

from sluice.common.contracts.access import AuditAction
from sluice.common.errors import SluiceError
from sluice.gateway.auth.access import Access
from sluice.gateway.dashboard.sessions import Session
from sluice.gateway.http.paths import DASHBOARD_SESSION
from sluice.gateway.http.problems import Problem, problem_of
from sluice.gateway.http.security import is_mutating, is_same_origin

COOKIE: Final = "sluice_session"
#: Header that dashboard pages send. A form or link on another site cannot set it.
PAGE_HEADER: Final = b"x-sluice-ui"
#: ASGI scope key under which the auth middleware stores the session for the routes.
SCOPE_KEY: Final = "sluice.session"
#: Headers that proxies add to requests, besides those with the prefix.
PROXY_HEADERS: Final = frozenset((b"forwarded", b"via", b"x-real-ip"))
PROXY_PREFIX: Final = b"x-forwarded-"
#: First bytes of these headers and of PAGE_HEADER: few others have to be compared.
_PROXY_INITIALS: Final = frozenset((b"f", b"v", b"x"))
_SAME_ORIGIN_FETCHES = (b"same-origin", b"none")
#: Characters of a path that the audit log keeps unescaped. A line break, for example, is escaped,
#: because it could pass for another entry.
_PLAIN: Final = "/:@!$&'()*+,;=~"


class Credentials(NamedTuple):
    """Credentials found in the headers of a request."""

    keys: list[bytes]
    cookie: str
    #: True if the request has the header of dashboard pages.
    from_dashboard: bool
    #: Name of a header that only proxies add; empty without one.
    proxy_header: str


def credentials_in(headers: Iterable[tuple[bytes, bytes]]) -> Credentials:
    """Collect the credentials in a single pass, because this runs for every request."""
    keys: list[bytes] = []
    cookies = b""
    from_dashboard = False
    proxy_header = b""
    for name, value in headers:
        if name == b"authorization":
            keys.append(value)
        elif name == b"cookie":
            cookies += b";" + value
        elif name[:1] in _PROXY_INITIALS:
            if name == PAGE_HEADER:
                from_dashboard = True
            elif name in PROXY_HEADERS or name.startswith(PROXY_PREFIX):
                proxy_header = name
    cookie = _cookie_in(cookies) if cookies else ""
    return Credentials(keys, cookie, from_dashboard, proxy_header.decode("latin-1"))


def is_same_origin_fetch(scope: Scope) -> bool:
    """False if `Sec-Fetch-Site` names another site; true if the browser does not send it."""
    fetch_site = _header(scope, b"sec-fetch-site")
    return fetch_site is None or fetch_site in _SAME_ORIGIN_FETCHES


async def check_allowed(
    scope: Scope, shown: Credentials, session: Session | None, access: Access, *, read_only: bool
) -> None:
    """Raise a Problem if a page may not send this request; record it in the audit log otherwise.

    The entry is written before the action. Requests that change nothing are not checked.
    """
    signing = scope["path"] == DASHBOARD_SESSION
    if not is_mutating(scope) or not (session or shown.from_dashboard or signing):
        return
    if (session or signing) and not (shown.from_dashboard and _is_verified_same_origin(scope)):
        raise Problem(
            403,
            "not_from_dashboard",
            "A dashboard session can change something only from the dashboard's own pages: the "
            "request needs X-Sluice-UI and a same-origin Origin or Sec-Fetch-Site header. "
            "Other clients need an API key.",
        )
    if signing:
        return
    if read_only:
        raise Problem(
            403,
            "dashboard_read_only",
            "This dashboard is read-only (DASHBOARD=read-only). Use the API or the command line.",
        )
    if session is not None and not session.actions:
        raise Problem(
            403,
            "session_read_only",
            "This session is read-only. To change something, sign in again and allow actions.",
        )
    target = f"{scope['method']} {quote(scope['path'], safe=_PLAIN)}"
    try:
        await access.record(Request(scope), AuditAction.UI_ACTION, target)
    except SluiceError as error:
        raise problem_of(error) or error from None


def _is_verified_same_origin(scope: Scope) -> bool:
    """True if the browser confirms the origin.

    Every browser sends `Sec-Fetch-Site` or `Origin` with a request that is not a simple GET.
    """
    fetch_site, origin = _header(scope, b"sec-fetch-site"), _header(scope, b"origin")
    if fetch_site is not None and fetch_site != b"same-origin":
        return False
    if origin is None:
        return fetch_site is not None
    return is_same_origin(origin, _header(scope, b"host") or b"")


def _header(scope: Scope, header_name: bytes) -> bytes | None:
    for name, value in scope["headers"]:
        if name == header_name:
            found: bytes = value
            return found
    return None


def _cookie_in(cookies: bytes) -> str:
    for pair in cookies.split(b";"):
        name, _, value = pair.strip().partition(b"=")
        if name == COOKIE.encode():
            return value.decode("latin-1")
    return ""
