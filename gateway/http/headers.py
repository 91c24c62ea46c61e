"""HTTP headers that several routes share: ETag and If-None-Match, Idempotency-Key, Prefer.

Each request header is declared here once as a FastAPI parameter.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import Header, Query
from pydantic import WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from sluice.gateway.http.problems import Problem


def text_schema(*examples: str) -> WithJsonSchema:
    """The schema of an optional text: FastAPI would add null, which a header cannot have."""
    return WithJsonSchema({"type": "string", **({"examples": [*examples]} if examples else {})})


IfNoneMatch = Annotated[
    str | None,
    Header(
        alias="If-None-Match",
        description="The ETag of an earlier response. If nothing has changed, the response is 304.",
    ),
    text_schema('"0123456789abcdef"'),
]
#: A client may send several Prefer headers; they count as one list.
Prefer = Annotated[
    list[str] | None,
    Header(
        alias="Prefer",
        description="RFC 7240: seconds to wait for the result before the response is sent.",
    ),
    text_schema("wait=10"),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Any unique text. A request that is repeated with the same key is executed "
        "once.",
    ),
    text_schema("order-1742"),
]
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", description="Resume after this event."),
    text_schema("1760000000000-0"),
]
LastEventIdQuery = Annotated[
    str | None,
    Query(
        alias="last_event_id",
        description="The same as Last-Event-ID, for clients that cannot set headers.",
    ),
    text_schema(),
]
#: The query parameter with a read token.
READ_TOKEN_PARAM: Final = "token"
ReadTokenQuery = Annotated[
    str | None,
    Query(
        alias=READ_TOKEN_PARAM,
        description="A read token of this job, for clients that cannot send headers.",
    ),
    text_schema(),
]
Traceparent = Annotated[
    str | None,
    Header(
        alias="traceparent",
        description="W3C Trace Context: the trace that the job is part of. An invalid value is "
        "ignored.",
    ),
    text_schema("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
]


def strong_etag(body: bytes) -> str:
    """The ETag of a response with this body, with its quotes."""
    return f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def if_none_match(request: Request) -> str:
    """The value of If-None-Match; empty where the request has none."""
    return request.headers.get("if-none-match", "")


def is_etag_listed(
    known: str | None, tag: str, *, weak: bool = True, wildcard: bool = True
) -> bool:
    """True if a value of If-None-Match (RFC 9110, section 13.1.2) names this tag.

    `weak`: `W/"x"` names `"x"`, too. `wildcard`: `*` names every tag.
    """
    versions = [version.strip() for version in (known or "").split(",")]
    if weak:
        versions = [version.removeprefix("W/") for version in versions]
    return tag in versions or (wildcard and "*" in versions)


def not_modified(headers: Mapping[str, str]) -> Response:
    """The 304 response; `headers` are those of the 200 response, without those of its body."""
    return Response(None, 304, dict(headers))


def accepts_gzip(request: Request) -> bool:
    """True if the request has an Accept-Encoding (RFC 9110, section 12.5.3) that allows gzip."""
    weights: dict[str, bool] = {}
    for item in ",".join(request.headers.getlist("accept-encoding")).split(","):
        coding, _, parameters = item.partition(";")
        weights[coding.strip().lower()] = not _WEIGHT_0.match(parameters)
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", False)))


def json_with_etag(
    body: bytes,
    known: str | None,
    headers: Mapping[str, str] | None = None,
    *,
    wildcard: bool = True,
) -> Response:
    """JSON with its ETag, or a 304 response if the client knows it.

    `known`: the value of If-None-Match. `headers`: sent with the JSON only.
    """
    tag = strong_etag(body)
    cache = {"ETag": tag, "Cache-Control": "no-cache"}
    if is_etag_listed(known, tag, wildcard=wildcard):
        return not_modified(cache)
    return Response(body, 200, {**cache, **(headers or {})}, "application/json")


#: Sent with the response to a request that was accepted before under the same key.
REPLAYED_HEADER: Final = "Idempotency-Replayed"
#: An earlier spelling of that header, sent as well for one more release.
REPLAYED_ALIAS: Final = "Idempotent-Replayed"
#: The headers of every response to a replayed request.
REPLAYED_HEADERS: Final[Mapping[str, str]] = {REPLAYED_HEADER: "true", REPLAYED_ALIAS: "true"}

#: `q=0`: the client refuses this encoding.
_WEIGHT_0: Final = re.compile(r"\A\s*q\s*=\s*0(?:\.0{0,3})?\s*\Z", re.IGNORECASE)

_IDEMPOTENCY_KEY: Final = "idempotency-key"
#: Printable ASCII, with no space at either end.
_KEY: Final = re.compile(r"\A[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?\Z")


def idempotency_key(request: Request) -> str | None:
    """The client's key; None where the request has none. Raises 400 for an invalid one."""
    return checked_idempotency_key(request.headers.get(_IDEMPOTENCY_KEY))


def checked_idempotency_key(raw: str | None) -> str | None:
    """The key in a value of Idempotency-Key. Raises 400 for an invalid one."""
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


def idempotency_keys(request: Request) -> list[str]:
    """The keys of all Idempotency-Key headers of a request, not validated."""
    return [_unquote(raw) for raw in request.headers.getlist(_IDEMPOTENCY_KEY)]


def _unquote(raw: str) -> str:
    """The quotes of a structured header are not part of the key."""
    return raw[1:-1] if len(raw) > 1 and raw[0] == raw[-1] == '"' else raw


_WAIT: Final = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,300})\"?", re.IGNORECASE)


def parse_prefer_wait(prefer: str | None, most_s: float) -> float:
    """Seconds from `Prefer: wait=N`, at most `most_s`; 0 where it is absent or unreadable."""
    match = _WAIT.search(prefer) if prefer else None
    return min(float(match[1]), most_s) if match else 0.0
