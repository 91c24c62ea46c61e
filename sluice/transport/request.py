"""HTTP requests before they are sent, responses after they came, and errors made of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode, urljoin, urlsplit

from sluice.errors import (
    BadAnswer,
    Conflict,
    InProgress,
    Invalid,
    NotAllowed,
    NotFound,
    RateLimited,
    Refused,
    Unavailable,
    Unreachable,
)

T_co = TypeVar("T_co", covariant=True)
JSON = "application/json"
EVENT_STREAM, NDJSON = "text/event-stream", "application/x-ndjson"
#: Codes of a 503 that mean "too much load", not "unavailable".
_OVERLOAD_CODES = ("under_pressure", "too_many_streams", "too_many_connections")
_REQUEST_IN_PROGRESS = "request_in_progress"
_REDIRECTS = (301, 302, 303, 307, 308)
_NOT_JSON = "what answers is no gateway of Sluice, or a much newer one; check the URL"
#: No response of a gateway is longer.
MAX_RESPONSE_BYTES = 256 * 1024 * 1024
TIMEOUT_S = 30.0
USER_AGENT = "sluice-client"
QueryValue = str | int | float | bool | Sequence[str] | None


@dataclass(frozen=True)
class Response:
    """A response with its whole body; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The decoded body; raises BadAnswer if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise BadAnswer(_NOT_JSON) from None


@dataclass(frozen=True)
class Request(Generic[T_co]):
    """A request, and the function that reads its response."""

    method: str
    path: str
    read: Callable[[Response], T_co]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Whether it may be sent again although the gateway may have processed it already.
    idempotent: bool = True
    #: How long the gateway was asked to wait before it responds.
    wait_s: float = 0.0
    follow_redirects: bool = False
    #: Statuses from 400 on that are no errors.
    accepted_statuses: tuple[int, ...] = ()


def build_request(
    method: str,
    path: str,
    read: Callable[[Response], T_co],
    *,
    query: Mapping[str, QueryValue] | None = None,
    body: object = None,
    headers: Mapping[str, str | None] | None = None,
    key: str | None = None,
    idempotent: bool | None = None,
    wait_s: float | None = None,
) -> Request[T_co]:
    """A request with a JSON body, an Idempotency-Key and `Prefer: wait`, each if given."""
    given = {name: value for name, value in (headers or {}).items() if value is not None}
    raw: bytes | None = None
    if body is not None:
        raw = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
        given["Content-Type"] = JSON
    elif method in ("POST", "PUT", "PATCH"):
        raw = b""
    if key is not None:
        given["Idempotency-Key"] = _check_key(key)
    if wait_s:
        given["Prefer"] = f"wait={wait_s:.0f}"
    if idempotent is None:
        idempotent = method in ("GET", "HEAD", "PUT", "DELETE") or key is not None
    return Request(method, path + query_string(query), read, raw, given, idempotent, wait_s or 0.0)


def query_string(query: Mapping[str, QueryValue] | None) -> str:
    """`?…` without members that are None; a sequence becomes repeated members."""
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


def drop_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """Only the options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def path_segment(text: str) -> str:
    """An id as one segment of a path, whatever characters it has."""
    # URL normalisation would take one or two dots for the current or the parent directory.
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E") or "%20"


def _check_key(key: str) -> str:
    if not 1 <= len(key) <= 255 or not key.isascii() or not key.isprintable():
        raise ValueError("an idempotency key is 1 to 255 printable ASCII characters")
    return key


def new_idempotency_key() -> str:
    """A random idempotency key."""
    return os.urandom(16).hex()


def request_headers(request: Request[Any], api_key: str) -> dict[str, str]:
    """The request's headers and the client's own."""
    headers = {"Accept": f"{JSON}, */*;q=0.5", "User-Agent": USER_AGENT, **request.headers}
    if api_key:
        headers.setdefault("Authorization", f"Bearer {api_key}")
    return headers


# -- responses ---------------------------------------------------------------------------------


def redirect_target(
    url: str, request: Request[Any], response: Response
) -> tuple[str, Request[Response]] | None:
    """Where a redirect leads: a server's URL and the request for it; None for a final response.

    Raises Refused for an error status, BadAnswer for a redirect that may not be followed.
    """
    if response.status >= 400 and response.status not in request.accepted_statuses:
        raise error_from(url, response)
    if response.status not in _REDIRECTS:
        return None
    if not request.follow_redirects or "location" not in response.headers:
        raise not_a_gateway(url)
    parts = urlsplit(urljoin(url + request.path, response.headers["location"]))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise not_a_gateway(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return f"{parts.scheme}://{parts.netloc}", Request("GET", path, lambda response: response)


def error_from(url: str, response: Response) -> Refused:
    """The error that a response with a status from 400 on means."""
    problem = _problem_in(response)
    code, detail = _code_and_detail(problem)
    status = response.status
    text = f"{url} said no: {status} {detail or _phrase(status)}".rstrip()
    kind: type[Refused] = Refused
    if status in (401, 403):
        kind = NotAllowed
    elif status in (404, 410):
        kind = NotFound
    elif status == 409:
        kind = InProgress if code == _REQUEST_IN_PROGRESS else Conflict
    elif status == 429 or (status == 503 and code in _OVERLOAD_CODES):
        kind = RateLimited
    elif status in (408, 502, 503, 504):
        kind = Unavailable
    elif status < 500:
        kind = Invalid
    return kind(text, status, code, detail, problem, retry_after_s(response.headers))


def _phrase(status: int) -> str:
    from http import HTTPStatus

    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The Retry-After of a response in seconds; the gateway never sends a date."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        if value.isascii() and value.isdigit():
            return int(value[:9]) * scale
    return None


def _problem_in(response: Response) -> Mapping[str, Any]:
    try:
        problem = json.loads(response.body)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _code_and_detail(problem: Mapping[str, Any]) -> tuple[str, str]:
    """Of an RFC 9457 problem, or of the workflow API's envelope."""
    code, detail = problem.get("code"), problem.get("detail")
    errors = problem.get("errors")
    if isinstance(errors, list) and errors and isinstance(errors[0], dict):
        first = errors[0]
        if code is None:
            code = first.get("code")
        message = first.get("message") or first.get("detail")
        if detail is None:
            detail = message
        elif isinstance(first.get("pointer"), str) and isinstance(message, str):
            where = first.get("pointer") or first.get("field")
            detail = f"{detail} {where}: {message}"
    return (
        code if isinstance(code, str) else "",
        detail if isinstance(detail, str) else "",
    )


def unreachable(url: str, error: object) -> Unreachable:
    """No connection could be made."""
    return Unreachable(
        f"no gateway answers at {url} ({error}); start one with `sluice up`, "
        "or name another with --url or SLUICE_URL"
    )


def not_a_gateway(url: str) -> BadAnswer:
    """The server's response is not one of a gateway."""
    return BadAnswer(f"what answers at {url} is no gateway of Sluice; check the URL")


def too_large(url: str) -> BadAnswer:
    """The response exceeds MAX_RESPONSE_BYTES."""
    return BadAnswer(f"the answer of {url} is longer than {MAX_RESPONSE_BYTES >> 20} MB")
