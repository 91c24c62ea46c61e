"""Sends requests with retries, follows event streams and iterates over pages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

from sluice.api.jobs import Event
from sluice.api.parsing import Page, next_cursor, read_object
from sluice.errors import SluiceError
from sluice.transport.aio import AsyncTransport, sleep
from sluice.transport.event_stream import NO_CONTENT, SILENCE_S, EventStream, parse_event
from sluice.transport.request import (
    EVENT_STREAM,
    TIMEOUT_S,
    QueryValue,
    Request,
    build_request,
    not_a_gateway,
    resolve_key,
    resolve_url,
)
from sluice.transport.retry import RETRIES, RetryBudget
from sluice.transport.sse import SseParser

T = TypeVar("T")
M = TypeVar("M")


class AsyncBaseClient:
    """Sends requests to one gateway and retries them."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        retries: int = RETRIES,
    ) -> None:
        self.url = resolve_url(url)
        self._retries = retries
        self.transport = AsyncTransport(self.url, resolve_key(api_key), timeout_s)

    async def close(self) -> None:
        """Close the connections to the gateway."""
        await self.transport.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, QueryValue] | None = None,
        body: object = None,
        idempotency_key: str | None = None,
    ) -> dict[str, Any]:
        """Send any API request whose response is a JSON object."""
        return await self.send(
            build_request(method, path, read_object, query=query, body=body, key=idempotency_key)
        )

    async def send(self, request: Request[T], budget: RetryBudget | None = None) -> T:
        """Send a request, retry it on transient errors, and parse the response."""
        budget = budget or RetryBudget(self._retries)
        while True:
            try:
                return request.read(await self.transport.send(request))
            except SluiceError as error:
                pause_s = budget.pause_s(error, request)
                if pause_s is None:
                    raise
            await sleep(pause_s)

    async def follow(self, stream: EventStream) -> AsyncGenerator[Event, None]:
        """Iterate over the events of a stream, each once, reconnecting as needed."""
        while True:
            parser, error = SseParser(), None
            try:
                async with self.transport.open(stream.request(), SILENCE_S) as response:
                    if response.status == NO_CONTENT:
                        return
                    if not response.headers.get("content-type", "").startswith(EVENT_STREAM):
                        raise not_a_gateway(self.url)
                    async for chunk in response.chunks():
                        for message in parser.feed(chunk):
                            if stream.accept(message):
                                yield parse_event(message)
                            if stream.ended:
                                return
            except SluiceError as lost:
                error = lost
            await sleep(stream.pause_s(error, parser.retry_s))

    async def paginate(
        self, request_for: Callable[[str | None], Request[Page[M]]]
    ) -> AsyncIterator[M]:
        """Iterate over all items of a listing; `request_for` builds the request for a cursor."""
        cursor: str | None = None
        while True:
            page = await self.send(request_for(cursor))
            for item in page.items:
                yield item
            cursor = next_cursor(cursor, page.next)
            if cursor is None:
                return
