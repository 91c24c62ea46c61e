"""A request before it is sent, an answer after it came, and what an answer that says no means."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from client.errors import (
    BadAnswer,
    Conflict,
    InProgress,
    Invalid,
    NotAllowed,
    NotFound,
    RateLimited,
    Refused,
    Unavailable,
)

T_co = TypeVar("T_co", covariant=True)
JSON = "application/json"
EVENT_STREAM, NDJSON = "text/event-stream", "application/x-ndjson"
#: Codes of a 503 that mean "too much", not "away".
_TOO_MUCH = ("under_pressure", "too_many_streams", "too_many_connections")
_REQUEST_IN_PROGRESS = "request_in_progress"
QueryValue = str | int | float | bool | Sequence[str] | None


@dataclass(frozen=True)
class Answer:
    """A whole answer; names of headers are in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """What it says; raises BadAnswer where that is no JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise BadAnswer(_NO_GATEWAY) from None


@dataclass(frozen=True)
class Call(Generic[T_co]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[Answer], T_co]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Whether it may be sent again although the first one may have been heard.
    repeatable: bool = True
    #: How long the gateway was asked to wait before it answers.
    waits_s: float = 0.0
    #: Whether an answer that names another place is followed there.
    redirects: bool = False
    #: Answers below 400 are good; these are as well.
    also_good: tuple[int, ...] = ()


_NO_GATEWAY = "what answers is no gateway of Sluice, or a much newer one; check the URL"


def call(
    method: str,
    path: str,
    read: Callable[[Answer], T_co],
    *,
    query: Mapping[str, QueryValue] | None = None,
    body: object = None,
    headers: Mapping[str, str | None] | None = None,
    key: str | None = None,
    repeatable: bool | None = None,
    wait_s: float | None = None,
) -> Call[T_co]:
    """A request with a body in JSON, an idempotency key and a wish to wait, each if given."""
    given = {name: value for name, value in (headers or {}).items() if value is not None}
    raw: bytes | None = None
    if body is not None:
        raw = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
        given["Content-Type"] = JSON
    elif method in ("POST", "PUT", "PATCH"):
        raw = b""
    if key is not None:
        given["Idempotency-Key"] = _checked(key)
    if wait_s:
        given["Prefer"] = f"wait={wait_s:.0f}"
    if repeatable is None:
        repeatable = method in ("GET", "HEAD", "PUT", "DELETE") or key is not None
    return Call(method, path + query_text(query), read, raw, given, repeatable, wait_s or 0.0)


def query_text(query: Mapping[str, QueryValue] | None) -> str:
    """`?…`, without what is None; sequences as repeated members."""
    pairs: list[tuple[str, str]] = []
    for name, value in (query or {}).items():
        if value is None:
            continue
        if isinstance(value, bool):
            pairs.append((name, "true" if value else "false"))
        elif isinstance(value, (str, int, float)):
            pairs.append((name, str(value)))
        else:
            pairs.extend((name, str(one)) for one in value)
    return f"?{urlencode(pairs)}" if pairs else ""


def segment(text: str) -> str:
    """An id as one part of a path, whatever is in it."""
    # A lone dot or two would be taken for a way up by whoever tidies URLs.
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E") or "%20"


def _checked(key: str) -> str:
    if not 1 <= len(key) <= 255 or not key.isascii() or not key.isprintable():
        raise ValueError("an idempotency key is 1 to 255 printable ASCII characters")
    return key


def new_key() -> str:
    """An idempotency key that nobody has used."""
    return os.urandom(16).hex()


def refusal(url: str, answer: Answer) -> Refused:
    """What an answer from 400 on means."""
    told = _told(answer)
    code, detail = _code_and_detail(told)
    status = answer.status
    text = f"{url} said no: {status} {detail or _phrase(status)}".rstrip()
    kind: type[Refused] = Refused
    if status in (401, 403):
        kind = NotAllowed
    elif status in (404, 410):
        kind = NotFound
    elif status == 409:
        kind = InProgress if code == _REQUEST_IN_PROGRESS else Conflict
    elif status == 429 or (status == 503 and code in _TOO_MUCH):
        kind = RateLimited
    elif status in (408, 502, 503, 504):
        kind = Unavailable
    elif status < 500:
        kind = Invalid
    return kind(text, status, code, detail, told, retry_after_s(answer.headers))


def _phrase(status: int) -> str:
    from http import HTTPStatus

    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """When the gateway wants to be asked again; dates are none of its ways."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        if value.isascii() and value.isdigit():
            return int(value[:9]) * scale
    return None


def _told(answer: Answer) -> Mapping[str, Any]:
    try:
        told = json.loads(answer.body)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _code_and_detail(told: Mapping[str, Any]) -> tuple[str, str]:
    """Of a problem, or of a workflow's envelope."""
    code, detail = told.get("code"), told.get("detail")
    errors = told.get("errors")
    if isinstance(errors, list) and errors and isinstance(errors[0], dict):
        first = errors[0]
        if code is None:
            code = first.get("code")
        said = first.get("message") or first.get("detail")
        where = first.get("pointer") or first.get("field")
        if detail is None:
            detail = said
        elif isinstance(first.get("pointer"), str) and isinstance(said, str):
            detail = f"{detail} {where}: {said}"
    return (
        code if isinstance(code, str) else "",
        detail if isinstance(detail, str) else "",
    )
