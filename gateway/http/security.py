"""Security headers, and the checks of Host and Origin.

A browser sends requests of any page to any address, with the network access of its machine, and
names the page's origin. Requests that change something are refused if they come from the page of
another site, and no such page may read a response (CORS), unless ALLOWED_ORIGINS names its origin.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Scope

from sluice.common.errors import SettingsError
from sluice.gateway.http.paths import RAG_PREFIX
from sluice.gateway.http.problems import Problem

#: C0 and C1 control characters, DEL, and the line breaks of Unicode.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def effective_method(scope: Scope) -> str:
    """The request's method. A search creates a job, so it counts as POST."""
    path: str = scope["path"]
    makes_job = path.startswith(RAG_PREFIX) and path.endswith("/search")
    method: str = "POST" if makes_job else scope["method"]
    return method


def check_path(path: str) -> None:
    """Raise a problem for control characters and line breaks. A route's pattern may ignore one at
    the end of a path, so that a check that compares the path would not see which route is called.
    """
    if not path.isprintable() and _CONTROL.search(path):
        raise Problem(
            400,
            "malformed_request",
            "The path has a control character or a line break, such as %0A.",
        )


def is_mutating(scope: Scope) -> bool:
    return effective_method(scope) not in SAFE_METHODS


Header = tuple[bytes, bytes]

POLICY = b"content-security-policy"
CACHING = b"cache-control"
#: The policy of responses that are not pages.
NO_CONTENT = (POLICY, b"default-src 'none'; frame-ancestors 'none'")
NO_STORE = (CACHING, b"no-store")
#: Headers of every response.
ALWAYS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
#: The headers of almost all responses, built once.
_USUAL = (*ALWAYS, NO_CONTENT, NO_STORE)
_OWN_CACHING = (*ALWAYS, NO_CONTENT)
_OWN_POLICY = (*ALWAYS, NO_STORE)

#: Headers of pages: isolated from windows of other sites.
PAGE_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


def missing_security_headers(given: Iterable[Header]) -> tuple[Header, ...]:
    """The headers to add to a response; a policy and caching set by the route stay."""
    caching = policy = False
    for name, _ in given:
        if name == CACHING:
            caching = True
        elif name == POLICY:
            policy = True
    if not caching:
        return _OWN_POLICY if policy else _USUAL
    return ALWAYS if policy else _OWN_CACHING


def add_security_headers(message: Message, *more: Header) -> None:
    """Add the security headers and `more` to a response's start message."""
    given = message["headers"]
    message["headers"] = [*given, *more, *missing_security_headers(given)]


#: Most accepted values of Host that are cached.
MAX_CACHED_HOSTS = 1024
_HOST = re.compile(r"\A(\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9._-]{0,252}))(?::[0-9]{0,5})?\Z")
_NAME = re.compile(r"\A(\*\.)?[a-z0-9_]([a-z0-9._-]{0,252})\Z")


class HostPolicy:
    """Addresses, `localhost`, the machine's own name, and whatever ALLOWED_HOSTS adds."""

    def __init__(self, allowed: str = "", machine: str | None = None) -> None:
        own = _plain(machine if machine is not None else socket.gethostname())
        short = own.partition(".")[0]
        names = {"localhost", own, short, f"{short}.local", *_parse_hosts(allowed)}
        self._names = {name for name in names if name and not name.startswith("*.")}
        endings = {name[1:] for name in names if name.startswith("*.")}
        self._endings = (".localhost", *sorted(endings))
        self._accepted: set[bytes] = set()

    def check(self, scope: Scope, host: bytes | None) -> None:
        """Raise a problem for a Host header that does not name this gateway."""
        if host is not None and host in self._accepted:
            return
        if host is None:
            if scope["http_version"] == "1.0":
                return
            raise Problem(400, "malformed_request", "There is no Host header.")
        name = host_name(host)
        if name is None:
            raise Problem(
                400, "malformed_request", "The Host header is not a valid name or address."
            )
        if not self._knows(name):
            raise Problem(
                421,
                "misdirected_request",
                f"This gateway is not called {name}. If it should be, add the name to "
                "ALLOWED_HOSTS.",
            )
        if len(self._accepted) >= MAX_CACHED_HOSTS:
            self._accepted.clear()
        self._accepted.add(host)

    def _knows(self, name: str) -> bool:
        return name in self._names or name.endswith(self._endings) or _is_address(name)


def host_name(host: bytes) -> str | None:
    """A Host header in lower case, without port and final dot; None for an invalid one."""
    match = _HOST.match(host.decode("latin-1").lower())
    return None if match is None else _plain(match[1])


def require_single_header(scope: Scope, name: bytes) -> None:
    """Raise a problem if a header that must be unique was sent several times."""
    if sum(given == name for given, _ in scope["headers"]) > 1:
        title = name.decode().title()
        raise Problem(400, "malformed_request", f"There is more than one {title} header.")


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return name.startswith("[") or ":" not in name


def _parse_hosts(text: str) -> set[str]:
    """The names in ALLOWED_HOSTS; `*.example.com` matches every name below it."""
    found = set()
    for part in filter(None, map(_plain, text.split(","))):
        if not _NAME.match(part) and not _is_address(part):
            raise SettingsError(
                f"ALLOWED_HOSTS={text!r}: {part!r} must be a name such as sluice.example.com or "
                "*.example.com, without scheme, port or path"
            )
        found.add(part)
    return found


_ORIGIN = re.compile(r"\A(https?)://(\[[0-9a-f:.]+\]|[a-z0-9_][a-z0-9._-]*)(?::([0-9]{1,5}))?\Z")
_OWN_PAGES = (b"same-origin", b"none")
_PORTS = {"http": "80", "https": "443"}
#: Headers that pages of allowed origins may send and read (CORS).
REQUEST_HEADERS = (
    "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, Prefer, "
    "traceparent, tracestate, X-Request-Id, X-Upload-Token, "
    # OpenAI's SDKs send these automatically.
    "X-Stainless-Arch, X-Stainless-Lang, X-Stainless-OS, X-Stainless-Package-Version, "
    "X-Stainless-Retry-Count, X-Stainless-Runtime, X-Stainless-Runtime-Version, "
    "X-Stainless-Timeout, X-Stainless-Helper-Method"
)
ANSWER_HEADERS = (
    "ETag, Idempotency-Replayed, Idempotent-Replayed, Link, Location, Preference-Applied, "
    "RateLimit, RateLimit-Policy, Retry-After, Retry-After-Ms, traceresponse, X-Job-Id, "
    "X-Request-Id, X-Should-Retry"
)
METHODS = "DELETE, GET, HEAD, PATCH, POST, PUT"
PREFLIGHT_AGE_S = 600
VARY: Header = (b"vary", b"Origin")


class OriginPolicy:
    """The allowed origins, and the CORS headers for their pages."""

    def __init__(self, allowed: str = "") -> None:
        self._allowed = _parse_origins(allowed)
        #: For every response: if some origins are allowed, responses differ by origin.
        self.default_headers: tuple[Header, ...] = (VARY,) if self._allowed else ()

    def check(self, method: str, headers: dict[bytes, bytes]) -> tuple[Header, ...]:
        """The headers to add; raises a problem if another site's page would change something."""
        origin = headers.get(b"origin")
        if origin is not None and origin in self._allowed:
            return (
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", ANSWER_HEADERS.encode()),
                VARY,
            )
        if method not in SAFE_METHODS:
            if origin is None:
                own = headers.get(b"sec-fetch-site", b"none") in _OWN_PAGES
            else:
                own = is_same_origin(origin, headers.get(b"host", b""))
            if not own:
                raise Problem(
                    403,
                    "foreign_origin",
                    "A page of another site may not send this request. To allow it, add its "
                    "origin to ALLOWED_ORIGINS.",
                )
        return self.default_headers

    def preflight(self, method: str, headers: dict[bytes, bytes]) -> Response | None:
        """The response to a CORS preflight request."""
        if method != "OPTIONS" or b"access-control-request-method" not in headers:
            return None
        if headers.get(b"origin") not in self._allowed:
            return None
        granted = {
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": REQUEST_HEADERS,
            "Access-Control-Max-Age": str(PREFLIGHT_AGE_S),
        }
        if headers.get(b"access-control-request-private-network") == b"true":
            granted["Access-Control-Allow-Private-Network"] = "true"
        return Response(None, 204, granted)


def is_same_origin(origin: bytes, host: bytes) -> bool:
    """True if a page was served by the host that it calls; a proxy may have added TLS."""
    match = _ORIGIN.match(origin.decode("latin-1").lower())
    if match is None:
        return False
    scheme, name, port = match.groups()
    called = host.decode("latin-1").lower()
    default = _PORTS[scheme]
    if port in (None, default):
        return called in (name, f"{name}:{default}")
    return called == f"{name}:{port}"


def _parse_origins(text: str) -> frozenset[bytes]:
    found = set()
    for part in filter(None, (part.strip().lower() for part in text.split(","))):
        match = _ORIGIN.match(part)
        if match is None:
            raise SettingsError(
                f"ALLOWED_ORIGINS={text!r}: {part!r} must be a scheme, a host and perhaps a port, "
                "such as https://app.example.com, without path or last slash"
            )
        scheme, name, port = match.groups()
        usual = port is None or port == _PORTS[scheme]
        found.add((f"{scheme}://{name}" if usual else part).encode())
    return frozenset(found)
