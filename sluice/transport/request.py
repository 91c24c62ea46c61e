"""HTTP requests and responses, the mapping of error responses, and the gateway's address."""

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
    Misconfigured,
    NotAllowed,
    NotFound,
    RateLimited,
    Refused,
    Unavailable,
    Unreachable,
)

DEFAULT_URL = "http://127.0.0.1:8080"
URL_VARIABLE, KEY_VARIABLE = "SLUICE_URL", "SLUICE_API_KEY"
T_co = TypeVar("T_co", covariant=True)
JSON = "application/json"
EVENT_STREAM, NDJSON = "text/event-stream", "application/x-ndjson"
#: Codes of a 503 that mean "too much load", not "unavailable".
_OVERLOAD_CODES = ("under_pressure", "too_many_streams", "too_many_connections")
_REQUEST_IN_PROGRESS = "request_in_progress"
_REDIRECTS = (301, 302, 303, 307, 308)
_NOT_JSON = "the response is not JSON: not a Sluice gateway, or a newer version; check the URL"
#: Maximum size of a response; a gateway never sends a longer one.
MAX_RESPONSE_BYTES = 256 * 1024 * 1024
TIMEOUT_S = 30.0
USER_AGENT = "sluice-client"
QueryValue = str | int | float | bool | Sequence[str] | None


@dataclass(frozen=True)
class Response:
    """A complete response. Header names are in lower case."""

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
    #: May be sent again even if the gateway has already processed it.
    idempotent: bool = True
    #: Seconds that the gateway was asked to hold the response.
    wait_s: float = 0.0
    follow_redirects: bool = False
    #: Statuses >= 400 that are not errors.
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
    """A request with optional JSON body, Idempotency-Key and `Prefer: wait` header."""
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
    """`?name=value…` without None values; a sequence becomes repeated parameters."""
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
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def path_segment(text: str) -> str:
    """Quote an id as one path segment."""
    # `.` and `..` are quoted too: URL normalisation would remove them.
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E") or "%20"


def _check_key(key: str) -> str:
    if not 1 <= len(key) <= 255 or not key.isascii() or not key.isprintable():
        raise ValueError("an idempotency key must be 1 to 255 printable ASCII characters")
    return key


def new_idempotency_key() -> str:
    return os.urandom(16).hex()


def request_headers(request: Request[Any], api_key: str) -> dict[str, str]:
    """The headers of the request with the client's defaults and the API key."""
    headers = {"Accept": f"{JSON}, */*;q=0.5", "User-Agent": USER_AGENT, **request.headers}
    if api_key:
        headers.setdefault("Authorization", f"Bearer {api_key}")
    return headers


# -- responses ---------------------------------------------------------------------------------


def redirect_target(
    url: str, request: Request[Any], response: Response
) -> tuple[str, Request[Response]] | None:
    """The base URL and request of a redirect; None for a final response.

    Raises Refused for an error status, BadAnswer for a redirect that must not be followed.
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
    """Map a response with status >= 400 to an error."""
    problem = _problem_in(response)
    code, detail = _code_and_detail(problem)
    status = response.status
    text = f"{url} refused the request: {status} {detail or _phrase(status)}".rstrip()
    if status == 401:
        text = f"{text.rstrip('.')}. Set the API key in {KEY_VARIABLE}."
    kind: type[Refused] = Refused
    if status in (401, 403):
        kind = NotAllowed
    elif status in (404, 410):
        kind = NotFound
        text += f" ({problem['instance']})" if isinstance(problem.get("instance"), str) else ""
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
    """Retry-After in seconds; dates are ignored, the gateway never sends them."""
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
    """Code and detail of an RFC 9457 problem, or of the workflow API's error envelope."""
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
            if message not in str(detail):  # the gateway's detail has the first error
                detail = f"{detail} {where}: {message}"
    return (
        code if isinstance(code, str) else "",
        detail if isinstance(detail, str) else "",
    )


def unreachable(url: str, error: object) -> Unreachable:
    return Unreachable(
        f"no gateway answers at {url} ({error}); start one with `sluice up`, "
        "or set --url or SLUICE_URL"
    )


def not_a_gateway(url: str) -> BadAnswer:
    return BadAnswer(f"the server at {url} is not a Sluice gateway; check the URL")


def too_large(url: str) -> BadAnswer:
    return BadAnswer(f"the response of {url} is longer than {MAX_RESPONSE_BYTES >> 20} MB")


# -- the gateway's URL and the API key ---------------------------------------------------------


def local_address() -> tuple[str, str]:
    """Host and port on which `sluice up` serves with this environment."""
    return os.environ.get("HOST") or "127.0.0.1", os.environ.get("PORT") or "8080"


def local_url() -> str:
    """The URL at which `sluice up` serves with this environment."""
    host, port = local_address()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def default_url() -> str:
    """SLUICE_URL, or else the local URL."""
    return os.environ.get(URL_VARIABLE, "").strip() or local_url()


def resolve_url(url: str | None) -> str:
    """The gateway's URL without a trailing slash; raises Misconfigured."""
    given = default_url() if url is None else url
    try:
        parts = urlsplit(given)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not given.isprintable() or " " in given or parts.query or parts.fragment:
        raise Misconfigured(
            f"{given!r} is not a gateway URL; set --url or {URL_VARIABLE} to one such as "
            f"{DEFAULT_URL}"
        )
    if parts.username is not None or parts.password is not None:
        raise Misconfigured(
            f"the gateway URL must not contain a user name; set the API key in {KEY_VARIABLE}"
        )
    return given.rstrip("/")


def resolve_key(key: str | None) -> str:
    """The API key, empty for none; raises Misconfigured if it is not a valid header value."""
    given = (os.environ.get(KEY_VARIABLE, "") if key is None else key).strip()
    if not given.isascii() or not given.isprintable() or " " in given:
        raise Misconfigured(
            f"invalid API key ({KEY_VARIABLE}): only printable ASCII without spaces is allowed"
        )
    return given
