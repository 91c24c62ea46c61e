"""HTTP requests to a model server, and the classification of their failures."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sluice.common import codec
from sluice.worker.features.http_errors import parse_retry_after, root_cause
from sluice.worker.features.model.endpoint import Endpoint
from sluice.worker.features.model.errors import ModelAnswerInvalid, ModelRefused, sanitize_text
from sluice.worker.features.model.wire.chunks import ServerError, parse_error

if TYPE_CHECKING:
    import httpx2

#: llama-server closes idle connections after 5 s; the client should close them first.
KEEP_ALIVE_S = 4.0
#: Most bytes read of a response. Embeddings are long: a thousand vectors of 1024 numbers.
MOST_BODY_BYTES = 32 * 1024 * 1024
#: Most bytes read of an error response.
MOST_ERROR_BYTES = 64 * 1024
#: Upper bound of a server's Retry-After.
MOST_RETRY_AFTER_S = 3600.0
#: Retryable statuses besides 5xx.
_RETRYABLE_STATUSES = frozenset({408, 425, 429})
_BUSY_STATUSES = frozenset({429, 503})
_NOT_SUPPORTED = 501
#: The package of httpx2's HTTP parser.
_HTTP_PARSER = "h11"


class RetryableFailure(Exception):
    """A request failed for a reason that may be temporary."""

    def __init__(
        self,
        message: str,
        *,
        reached: bool = True,
        broke: bool = False,
        slow: bool = False,
        invalid: bool = False,
        status: int = 0,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        #: False if no connection could be made.
        self.reached = reached
        #: True if the connection broke during the request; the request may be the cause.
        self.broke = broke
        #: True if connecting timed out.
        self.slow = slow
        #: True if the server sent something, which was not HTTP or incomplete.
        self.invalid = invalid
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def loading(self) -> bool:
        """True if the server is still loading its model."""
        return self.status == 503 and "loading" in str(self).lower()

    @property
    def busy(self) -> bool:
        """True if the server is overloaded."""
        return self.status in _BUSY_STATUSES and not self.loading


class ModelHttpClient:
    """HTTP client with a connection pool; opened on demand, because importing it is slow."""

    def __init__(self, connect_s: float) -> None:
        self._connect_s = connect_s
        self._client: httpx2.AsyncClient | None = None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @asynccontextmanager
    async def request(
        self,
        endpoint: Endpoint,
        method: str,
        url: str,
        body: dict[str, Any] | None = None,
        *,
        headers: dict[str, str] | None = None,
        read_s: float | None = None,
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request and yield the response. Leaving it unread closes the connection.

        Raises RetryableFailure, also for failures while the body is read.
        """
        import httpx2

        client = self.open()
        timeout = httpx2.Timeout(read_s, connect=self._connect_s)
        content = None if body is None else _encoded(body)
        sent = {"Content-Type": "application/json"} if content is not None else {}
        try:
            async with client.stream(
                method,
                url,
                content=content,
                headers={**sent, **endpoint.headers, **(headers or {})},
                timeout=timeout,
            ) as response:
                yield response
        except httpx2.ConnectTimeout:
            message = f"{endpoint.base} did not accept a connection within {self._connect_s:g} s"
            raise RetryableFailure(message, reached=False, slow=True) from None
        except httpx2.ConnectError as error:
            raise RetryableFailure(f"{endpoint.base}: {_cause(error)}", reached=False) from None
        except httpx2.DecodingError as error:
            raise ModelAnswerInvalid(
                f"the answer cannot be decoded: {sanitize_text(error)}"
            ) from None
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.LocalProtocolError):
            raise ModelRefused(
                f"cannot send requests to {endpoint.base}; is {endpoint.setting}_URL right?"
            ) from None
        except httpx2.TransportError as error:
            message = (
                f"{endpoint.base}: {sanitize_text(error, endpoint.secret) or type(error).__name__}"
            )
            raise RetryableFailure(message, broke=True, invalid=_violates_http(error)) from None

    def open(self) -> httpx2.AsyncClient:
        """The client. The first call is slow because it imports the library."""
        if self._client is None:
            import httpx2

            # httpx2 logs a line per request.
            logging.getLogger("httpx2").setLevel(logging.WARNING)
            self._client = httpx2.AsyncClient(
                # A proxy from the environment must not apply to a model on this host.
                trust_env=False,
                http2=False,
                follow_redirects=False,
                headers={"Accept-Encoding": "identity", "User-Agent": "sluice"},
                # Requests are bounded by the model's slots; probes come on top.
                limits=httpx2.Limits(
                    max_connections=None,
                    max_keepalive_connections=16,
                    keepalive_expiry=KEEP_ALIVE_S,
                ),
            )
        return self._client


async def read_body(response: httpx2.Response, most_bytes: int = MOST_BODY_BYTES) -> bytes:
    """Read the whole body; raises ModelAnswerInvalid if it is too long."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > most_bytes:
            raise ModelAnswerInvalid(f"the model server sent more than {most_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


async def check_status(response: httpx2.Response, endpoint: Endpoint) -> None:
    """Return on success.

    Raises RetryableFailure for temporary failures, ModelRefused for others.
    """
    status = response.status_code
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        where = sanitize_text(response.headers.get("location", "nowhere"), endpoint.secret)
        message = (
            f"{endpoint.base} redirects to {where}; set {endpoint.setting}_URL to that address"
        )
        raise ModelRefused(message, status)
    error = await _error(response, endpoint)
    message = f"{endpoint.base} answered {status}: {error.message}"
    if (status >= 500 and status != _NOT_SUPPORTED) or status in _RETRYABLE_STATUSES:
        after_s = parse_retry_after(response.headers.get("retry-after"), MOST_RETRY_AFTER_S)
        raise RetryableFailure(message, status=status, retry_after_s=after_s)
    raise refused_error(endpoint, status, message)


def refused_error(endpoint: Endpoint, status: int, message: str) -> ModelRefused:
    """The error of a request that must not be repeated, with a remedy if one is known."""
    name = endpoint.setting
    if status in (401, 403):
        message = f"{message}; is {name}_API_KEY right?"
    elif status == 404:
        message = f"{message}; are {name}_URL and {name}_NAME right?"
    return ModelRefused(message, status)


async def _error(response: httpx2.Response, endpoint: Endpoint) -> ServerError:
    try:
        raw = await read_body(response, MOST_ERROR_BYTES)
    except ModelAnswerInvalid:
        return ServerError("(a long text)")
    try:
        value = codec.loads(raw)
    except ValueError:
        value = codec.decode_text(raw[:4096])
    return parse_error(value, endpoint.secret) if value else ServerError("(nothing)")


def _encoded(body: dict[str, Any]) -> bytes:
    try:
        return codec.dumps(body)
    except TypeError:  # an unpaired surrogate in a model's output
        return json.dumps(body).encode()


def _violates_http(error: BaseException) -> bool:
    """True if the HTTP parser has rejected what a server sent, or misses the end of it."""
    cause: BaseException | None = error
    while cause is not None and type(cause).__module__.partition(".")[0] != _HTTP_PARSER:
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _cause(error: Exception) -> str:
    return root_cause(error) or sanitize_text(error) or type(error).__name__
