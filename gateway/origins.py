"""Which web pages may call this gateway: its own, and those of ALLOWED_ORIGINS.

A browser sends requests of any page to any address, with whatever right the browser's machine has,
and only tells whose page it was. So what changes something is refused to foreign pages, and no
foreign page may read an answer (CORS) unless its origin is allowed by name.
"""

from __future__ import annotations

import re

from starlette.responses import Response

from common.errors import SettingsError
from gateway.deeds import SAFE
from gateway.headers import Header
from gateway.problems import Problem

_ORIGIN = re.compile(r"\A(https?)://(\[[0-9a-f:.]+\]|[a-z0-9_][a-z0-9._-]*)(?::([0-9]{1,5}))?\Z")
_OWN_PAGES = (b"same-origin", b"none")
_PORTS = {"http": "80", "https": "443"}
#: What pages may send and read beyond what they always may.
REQUEST_HEADERS = (
    "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, Prefer, "
    "traceparent, tracestate, X-Request-Id, X-Upload-Token, "
    # OpenAI's SDKs send these of themselves.
    "X-Stainless-Arch, X-Stainless-Lang, X-Stainless-OS, X-Stainless-Package-Version, "
    "X-Stainless-Retry-Count, X-Stainless-Runtime, X-Stainless-Runtime-Version, "
    "X-Stainless-Timeout, X-Stainless-Helper-Method"
)
ANSWER_HEADERS = (
    "ETag, Idempotent-Replayed, Link, Location, Preference-Applied, RateLimit, RateLimit-Policy, "
    "Retry-After, Retry-After-Ms, traceresponse, X-Job-Id, X-Request-Id, X-Should-Retry"
)
METHODS = "DELETE, GET, HEAD, PATCH, POST, PUT"
PREFLIGHT_AGE_S = 600
VARY: Header = (b"vary", b"Origin")


class Origins:
    """The origins that are allowed, and what is answered to their pages."""

    def __init__(self, allowed: str = "") -> None:
        self._allowed = _parsed(allowed)
        #: For answers to everybody: where some origins are allowed, answers differ by origin.
        self.usual: tuple[Header, ...] = (VARY,) if self._allowed else ()

    def check(self, method: str, headers: dict[bytes, bytes]) -> tuple[Header, ...]:
        """What to add to the answer; a Problem for a foreign page that would change something."""
        origin = headers.get(b"origin")
        if origin is not None and origin in self._allowed:
            return (
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", ANSWER_HEADERS.encode()),
                VARY,
            )
        if method not in SAFE:
            if origin is None:
                own = headers.get(b"sec-fetch-site", b"none") in _OWN_PAGES
            else:
                own = is_own(origin, headers.get(b"host", b""))
            if not own:
                raise Problem(
                    403,
                    "foreign_origin",
                    "A page of another site may not change anything here. If it should, add its "
                    "origin to ALLOWED_ORIGINS.",
                )
        return self.usual

    def preflight(self, method: str, headers: dict[bytes, bytes]) -> Response | None:
        """The answer to a browser that asks whether a page of an allowed origin may."""
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


def is_own(origin: bytes, host: bytes) -> bool:
    """Whether a page came from the host that it calls; a proxy may have added the TLS."""
    match = _ORIGIN.match(origin.decode("latin-1").lower())
    if match is None:
        return False
    scheme, name, port = match.groups()
    called = host.decode("latin-1").lower()
    default = _PORTS[scheme]
    if port in (None, default):
        return called in (name, f"{name}:{default}")
    return called == f"{name}:{port}"


def _parsed(text: str) -> frozenset[bytes]:
    """ALLOWED_ORIGINS as browsers write them."""
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
