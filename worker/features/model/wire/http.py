"""Requests to a model server over HTTP, and what their failures mean."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from common import codec
from worker.features.http_errors import parse_retry_after, root_cause
from worker.features.model.endpoint import Endpoint
from worker.features.model.errors import ModelAnswerInvalid, ModelRefused, sanitize_text
from worker.features.model.wire.chunks import ServerError, parse_error

if TYPE_CHECKING:
    import httpx2

#: llama-server closes a connection that was idle for 5 s; ours had better be the first to.
KEEP_ALIVE_S = 4.0
#: Most that is read of an answer in one piece. Vectors are long: a thousand of 1024 numbers.
MOST_BODY_BYTES = 32 * 1024 * 1024
#: Most that is read of an error.
MOST_ERROR_BYTES = 64 * 1024
#: A wait that a server may ask for; more is a mistake.
MOST_RETRY_AFTER_S = 3600.0
#: Refusals that may pass, beside 5xx.
_RETRYABLE_STATUSES = frozenset({408, 425, 429})
_BUSY_STATUSES = frozenset({429, 503})
_NOT_SUPPORTED = 501


class RetryableFailure(Exception):
    """A request came to nothing for a reason that may pass."""

    def __init__(
        self,
        words: str,
        *,
        reached: bool = True,
        broke: bool = False,
        slow: bool = False,
        status: int = 0,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(words)
        #: Whether the server was there at all.
        self.reached = reached
        #: Whether it went away with the request in its hands: it may be the request's fault.
        self.broke = broke
        #: Whether it did not even take the connection in time.
        self.slow = slow
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def loading(self) -> bool:
        """Whether the model is only being loaded."""
        return self.status == 503 and "loading" in str(self).lower()

    @property
    def busy(self) -> bool:
        """Whether the server has too much to do."""
        return self.status in _BUSY_STATUSES and not self.loading


class ModelHttpClient:
    """A pool of connections; opened when first needed, because its import takes its time."""

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
        """The beginning of an answer; leaving it unread closes the connection at once.

        Raises Hiccup, for failures in the middle of the answer too.
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
            words = f"{endpoint.base} takes no connection within {self._connect_s:g} s"
            raise RetryableFailure(words, reached=False, slow=True) from None
        except httpx2.ConnectError as error:
            raise RetryableFailure(f"{endpoint.base}: {_cause(error)}", reached=False) from None
        except httpx2.DecodingError as error:
            raise ModelAnswerInvalid(
                f"the answer cannot be decoded: {sanitize_text(error)}"
            ) from None
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.LocalProtocolError):
            raise ModelRefused(
                f"no request can be sent to {endpoint.base}; is {endpoint.setting}_URL right?"
            ) from None
        except httpx2.TransportError as error:
            words = sanitize_text(error, endpoint.secret) or type(error).__name__
            raise RetryableFailure(f"{endpoint.base}: {words}", broke=True) from None

    def open(self) -> httpx2.AsyncClient:
        """The client; takes a while for the first time."""
        if self._client is None:
            import httpx2

            # It would write a line a request.
            logging.getLogger("httpx2").setLevel(logging.WARNING)
            self._client = httpx2.AsyncClient(
                # A proxy of the environment must not catch a model on this machine.
                trust_env=False,
                http2=False,
                follow_redirects=False,
                headers={"Accept-Encoding": "identity", "User-Agent": "sluice"},
                # Whoever asks has a place already; probes come beside them.
                limits=httpx2.Limits(
                    max_connections=None,
                    max_keepalive_connections=16,
                    keepalive_expiry=KEEP_ALIVE_S,
                ),
            )
        return self._client


async def read_body(response: httpx2.Response, most_bytes: int = MOST_BODY_BYTES) -> bytes:
    """A whole answer; raises ModelAnswerInvalid where it is too long."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > most_bytes:
            raise ModelAnswerInvalid(f"the model server sent more than {most_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


async def check_status(response: httpx2.Response, endpoint: Endpoint) -> None:
    """Return for a success; raises Hiccup for what may pass, ModelRefused for what will not."""
    status = response.status_code
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        where = sanitize_text(response.headers.get("location", "nowhere"), endpoint.secret)
        words = f"{endpoint.base} leads on to {where}; set {endpoint.setting}_URL to that"
        raise ModelRefused(words, status)
    error = await _error(response, endpoint)
    words = f"{endpoint.base} answered {status}: {error.message}"
    if (status >= 500 and status != _NOT_SUPPORTED) or status in _RETRYABLE_STATUSES:
        after_s = parse_retry_after(response.headers.get("retry-after"), MOST_RETRY_AFTER_S)
        raise RetryableFailure(words, status=status, retry_after_s=after_s)
    raise refused_error(endpoint, status, words)


def refused_error(endpoint: Endpoint, status: int, words: str) -> ModelRefused:
    """An error that will not pass, with what to do where that is known."""
    name = endpoint.setting
    if status in (401, 403):
        words = f"{words}; is {name}_API_KEY right?"
    elif status == 404:
        words = f"{words}; are {name}_URL and {name}_NAME right?"
    return ModelRefused(words, status)


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
    except TypeError:  # half an emoji, which a model may have said
        return json.dumps(body).encode()


def _cause(error: Exception) -> str:
    return root_cause(error) or sanitize_text(error) or type(error).__name__
