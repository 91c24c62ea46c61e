"""The HTTP transport of the asyncio client, over httpx2."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sluice.errors import Broken
from sluice.transport.request import (
    MAX_RESPONSE_BYTES,
    Request,
    Response,
    error_from,
    not_a_gateway,
    redirect_target,
    request_headers,
    too_large,
    unreachable,
)

if TYPE_CHECKING:
    import ssl

    import httpx2

T = TypeVar("T")
_MAX_IDLE = 16

sleep = asyncio.sleep


async def read_file(path: Path) -> bytes:
    """Read a file in a thread, without blocking the event loop."""
    return await asyncio.to_thread(path.read_bytes)


class StreamedResponse:
    """A response whose body is read in chunks."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body in chunks; raises Broken if the connection breaks before the end."""
        async for chunk in self._response.aiter_bytes():
            yield chunk

    async def lines(self) -> AsyncIterator[bytes]:
        rest = bytearray()
        async for chunk in self.chunks():
            rest += chunk
            if b"\n" not in chunk:
                continue
            *lines, rest = rest.split(b"\n")
            for line in lines:
                yield bytes(line)
        if rest:
            yield bytes(rest)


class AsyncTransport:
    """HTTP connections to one gateway, bound to one event loop."""

    def __init__(self, url: str, api_key: str, timeout_s: float) -> None:
        self.url = url
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._client: httpx2.AsyncClient | None = None

    async def send(self, request: Request[Any]) -> Response:
        """Send a request and read the whole response; raises Refused for an error status."""
        timeout_s = self._timeout_s + request.wait_s
        response = await self._within(timeout_s, self._receive(request, timeout_s))
        redirect = redirect_target(self.url, request, response)
        if redirect is None:
            return response
        # The target is an object store, which must not receive the API key.
        url, request = redirect
        other = AsyncTransport(url, "", self._timeout_s)
        try:
            return await other.send(request)
        finally:
            await other.close()

    @asynccontextmanager
    async def open(
        self, request: Request[Any], silence_s: float
    ) -> AsyncIterator[StreamedResponse]:
        """Send a request and stream the response; `silence_s` is the read timeout in seconds."""
        async with self._stream(request, silence_s) as streamed:
            if streamed.status >= 400:
                body = await self._within(self._timeout_s, _read_body(self.url, streamed))
                raise error_from(self.url, Response(streamed.status, streamed.headers, body))
            yield streamed

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _within(self, timeout_s: float, awaitable: Coroutine[Any, Any, T]) -> T:
        try:
            return await asyncio.wait_for(awaitable, timeout_s)
        except asyncio.TimeoutError:
            raise Broken(f"{self.url} did not respond in time; try again") from None

    async def _receive(self, request: Request[Any], timeout_s: float) -> Response:
        async with self._stream(request, timeout_s) as streamed:
            body = await _read_body(self.url, streamed)
            return Response(streamed.status, streamed.headers, body)

    @asynccontextmanager
    async def _stream(
        self, request: Request[Any], timeout_s: float
    ) -> AsyncIterator[StreamedResponse]:
        import httpx2

        url = self.url
        timeout = httpx2.Timeout(timeout_s, connect=min(timeout_s, self._timeout_s))
        try:
            async with self._open_client().stream(
                request.method,
                url + request.path,
                content=request.body,
                headers=request_headers(request, self._api_key),
                timeout=timeout,
            ) as response:
                yield StreamedResponse(response)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise unreachable(url, str(error) or "no connection in time") from None
        except httpx2.TimeoutException:
            raise Broken(f"{url} did not respond in time; try again") from None
        except (httpx2.InvalidURL, httpx2.DecodingError, httpx2.LocalProtocolError):
            raise not_a_gateway(url) from None
        except httpx2.RemoteProtocolError as error:
            if _is_disconnect(error):
                raise Broken(f"the connection to {url} broke; try again") from None
            raise not_a_gateway(url) from None
        except httpx2.TransportError as error:
            reason = str(error) or type(error).__name__
            raise Broken(f"the connection to {url} broke ({reason}); try again") from None

    def _open_client(self) -> httpx2.AsyncClient:
        if self._client is None:
            import logging

            import httpx2

            # httpx2 logs every request at INFO.
            logging.getLogger("httpx2").setLevel(logging.WARNING)
            self._client = httpx2.AsyncClient(
                # No proxy from the environment: it may not reach a gateway in the local network.
                trust_env=False,
                verify=_tls_context(self.url),
                follow_redirects=False,
                headers={"Accept-Encoding": "identity"},
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=_MAX_IDLE),
            )
        return self._client


def _tls_context(url: str) -> ssl.SSLContext | bool:
    """Trust the same CAs as the blocking client: the system's, or those in SSL_CERT_FILE."""
    if not url.startswith("https:"):
        return True
    import ssl

    return ssl.create_default_context()


async def _read_body(url: str, streamed: StreamedResponse) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in streamed.chunks():
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_RESPONSE_BYTES:
            raise too_large(url)
    return b"".join(chunks)


def _is_disconnect(error: Exception) -> bool:
    """True if the server closed the connection; False if it sent something other than HTTP."""
    reason = str(error).lower()
    return "disconnected" in reason or "incomplete" in reason or "closed connection" in reason
