"""The request header Idempotency-Key, and the response headers of a replayed request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request

from gateway.http.problems import Problem

#: Sent with the response to a request that was accepted before under the same key.
REPLAYED_HEADER: Final = "Idempotency-Replayed"
#: An earlier spelling of that header, sent as well for one more release.
REPLAYED_ALIAS: Final = "Idempotent-Replayed"
#: The headers of every response to a replayed request.
REPLAYED_HEADERS: Final[Mapping[str, str]] = {REPLAYED_HEADER: "true", REPLAYED_ALIAS: "true"}

_HEADER: Final = "idempotency-key"
#: Printable ASCII, with no space at either end.
_KEY: Final = re.compile(r"\A[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?\Z")


def idempotency_key(request: Request) -> str | None:
    """The client's key; None where the request has none. Raises 400 for an invalid one."""
    raw = request.headers.get(_HEADER)
    if raw is None:
        return None
    key = _unquote(raw)
    if not _KEY.match(key):
        raise Problem(
            400,
            "invalid_idempotency_key",
            "Idempotency-Key must be 1 to 255 printable ASCII characters, such as a UUID.",
        )
    return key


def header_keys(request: Request) -> list[str]:
    """The keys of all Idempotency-Key headers of a request, not validated."""
    return [_unquote(raw) for raw in request.headers.getlist(_HEADER)]


def _unquote(raw: str) -> str:
    """The quotes of a structured header are not part of the key."""
    return raw[1:-1] if len(raw) > 1 and raw[0] == raw[-1] == '"' else raw
