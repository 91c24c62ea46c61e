"""Entity tags of responses, and the request header If-None-Match (RFC 9110, section 13.1.2)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response


def strong_tag(body: bytes) -> str:
    """The ETag of a response with this body, with its quotes."""
    return f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def known_versions(request: Request) -> str:
    """The value of If-None-Match; empty where the request has none."""
    return request.headers.get("if-none-match", "")


def is_listed(known: str, tag: str, *, weak: bool = True, wildcard: bool = True) -> bool:
    """True if a value of If-None-Match names this tag.

    `weak`: `W/"x"` names `"x"`, too. `wildcard`: `*` names every tag.
    """
    versions = [version.strip() for version in known.split(",")]
    if weak:
        versions = [version.removeprefix("W/") for version in versions]
    return tag in versions or (wildcard and "*" in versions)


def matches(request: Request, tag: str, *, weak: bool = True, wildcard: bool = True) -> bool:
    """True if the client has the version with this tag and is to be answered with 304."""
    return is_listed(known_versions(request), tag, weak=weak, wildcard=wildcard)


def not_modified(headers: Mapping[str, str]) -> Response:
    """The 304 response; `headers` are those of the 200 response, without those of its body."""
    return Response(None, 304, dict(headers))
