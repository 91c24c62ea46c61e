"""HTTP in an event loop: whole answers, and streams of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin, urlsplit

from client.core.calls import Answer, Call, refusal
from client.core.traffic import MOST_BYTES, first_headers, no_gateway, too_long, unreachable
from client.errors import Broken

if TYPE_CHECKING:
    import ssl

    import httpx2

T = TypeVar("T")
_MOST_IDLE = 16


class Opened:
    """An answer whose body comes piece by piece."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._answer = answer
        self.status = answer.status_code
        self.headers = {name.lower(): value for name, value in answer.headers.items()}

    async def pieces(self) -> AsyncIterator[bytes]:
        """Until the gateway ends it; raises Broken where somebody else does."""
        async for piece in self._answer.aiter_bytes():
            yield piece

    async def lines(self) -> AsyncIterator[bytes]:
        """The same, line by line."""
        rest = bytearray()
        async for piece in self.pieces():
            rest += piece
            if b"\n" not in piece:
                continue
            *lines, rest = rest.split(b"\n")
            for line in lines:
                yield bytes(line)
        if rest:
            yield bytes(rest)


class AsyncTransport:
    """Connections to one gateway, for one event loop."""

    def __init__(self, url: str, key: str, timeout_s: float) -> None:
        self.url = url
        self._key = key
        self._timeout_s = timeout_s
        self._client: httpx2.AsyncClient | None = None

    async def send(self, call: Call[Any]) -> Answer:
        """Ask and read the whole answer; raises Refused where that says no."""
        timeout_s = self._timeout_s + call.waits_s
        answer = await self._in_time(self._whole(call, timeout_s), timeout_s)
        return await self._checked(call, answer)

    @asynccontextmanager
    async def open(self, call: Call[Any], silence_s: float) -> AsyncIterator[Opened]:
        """The same for an answer that may go on for as long as it likes, if not silently."""
        async with self._begun(call, silence_s) as opened:
            if opened.status >= 400:
                body = await self._in_time(_body(self.url, opened), self._timeout_s)
                raise refusal(self.url, Answer(opened.status, opened.headers, body))
            yield opened

    async def close(self) -> None:
        """End every connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _in_time(self, doing: Coroutine[Any, Any, T], timeout_s: float) -> T:
        try:
            return await asyncio.wait_for(doing, timeout_s)
        except asyncio.TimeoutError:
            raise Broken(f"{self.url} did not answer in time; try again") from None

    async def _whole(self, call: Call[Any], timeout_s: float) -> Answer:
        async with self._begun(call, timeout_s) as opened:
            return Answer(opened.status, opened.headers, await _body(self.url, opened))

    @asynccontextmanager
    async def _begun(self, call: Call[Any], timeout_s: float) -> AsyncIterator[Opened]:
        import httpx2

        url = self.url
        timeout = httpx2.Timeout(timeout_s, connect=min(timeout_s, self._timeout_s))
        headers = first_headers(call, self._key)
        try:
            async with self._opened().stream(
                call.method, url + call.path, content=call.body, headers=headers, timeout=timeout
            ) as answer:
                yield Opened(answer)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise unreachable(url, str(error) or "no connection in time") from None
        except httpx2.TimeoutException:
            raise Broken(f"{url} did not answer in time; try again") from None
        except (httpx2.InvalidURL, httpx2.DecodingError, httpx2.LocalProtocolError):
            raise no_gateway(url) from None
        except httpx2.RemoteProtocolError as error:
            if _broke(error):
                raise Broken(f"the connection to {url} broke; try again") from None
            raise no_gateway(url) from None
        except httpx2.TransportError as error:
            words = str(error) or type(error).__name__
            raise Broken(f"the connection to {url} broke ({words}); try again") from None

    def _opened(self) -> httpx2.AsyncClient:
        if self._client is None:
            import logging

            import httpx2

            # It would write a line a request.
            logging.getLogger("httpx2").setLevel(logging.WARNING)
            self._client = httpx2.AsyncClient(
                # No proxy: one that is set for the internet would not find a gateway near by.
                trust_env=False,
                verify=_trust(self.url),
                follow_redirects=False,
                headers={"Accept-Encoding": "identity"},
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=_MOST_IDLE),
            )
        return self._client

    async def _checked(self, call: Call[Any], answer: Answer) -> Answer:
        if answer.status >= 400 and answer.status not in call.also_good:
            raise refusal(self.url, answer)
        if answer.status in (301, 302, 303, 307, 308):
            if not call.redirects or "location" not in answer.headers:
                raise no_gateway(self.url)
            return await self._elsewhere(urljoin(self.url + call.path, answer.headers["location"]))
        return answer

    async def _elsewhere(self, url: str) -> Answer:
        """From a store that has never heard of our key."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise no_gateway(self.url)
        other = AsyncTransport(f"{parts.scheme}://{parts.netloc}", "", self._timeout_s)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            return await other.send(Call("GET", path, lambda answer: answer))
        finally:
            await other.close()


def _trust(url: str) -> ssl.SSLContext | bool:
    """Whom the other client trusts: the system's authorities, or those of SSL_CERT_FILE."""
    if not url.startswith("https:"):
        return True
    import ssl

    return ssl.create_default_context()


async def _body(url: str, opened: Opened) -> bytes:
    found: list[bytes] = []
    size = 0
    async for piece in opened.pieces():
        found.append(piece)
        size += len(piece)
        if size > MOST_BYTES:
            raise too_long(url)
    return b"".join(found)


def _broke(error: Exception) -> bool:
    """Whether the other end went away, rather than said something that is no HTTP."""
    said = str(error).lower()
    return "disconnected" in said or "incomplete" in said or "closed connection" in said
