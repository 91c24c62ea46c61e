"""How a gateway is asked, and asked again where that may help."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

from client.aio.transport import AsyncTransport
from client.core.calls import EVENT_STREAM, Call, QueryValue, call
from client.core.following import NOTHING_MORE, SILENCE_S, Following, event_of
from client.core.models import Event
from client.core.pages import Page
from client.core.paging import onward
from client.core.reading import raw_object
from client.core.retrying import RETRIES, Retrying
from client.core.sse import Parser
from client.core.traffic import TIMEOUT_S, no_gateway
from client.errors import SluiceError
from client.place import checked_key, checked_url

T = TypeVar("T")
M = TypeVar("M")


class AsyncAsking:
    """One gateway, with patience."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        retries: int = RETRIES,
    ) -> None:
        self.url = checked_url(url)
        self._retries = retries
        self.transport = AsyncTransport(self.url, checked_key(api_key), timeout_s)

    async def close(self) -> None:
        """Let go of idle connections."""
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
        """Anything else that the API has and answers with an object."""
        return await self.run(
            call(method, path, raw_object, query=query, body=body, key=idempotency_key)
        )

    async def run(self, asked: Call[T], retrying: Retrying | None = None) -> T:
        """Send a request, again where that may help, and read its answer."""
        tries = retrying or Retrying(self._retries)
        while True:
            try:
                return asked.read(await self.transport.send(asked))
            except SluiceError as error:
                pause_s = tries.pause_s(error, asked)
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)

    async def follow(self, following: Following) -> AsyncGenerator[Event, None]:
        """Every event of a stream once, over as many connections as it takes."""
        while True:
            parser, error = Parser(), None
            try:
                async with self.transport.open(following.call(), SILENCE_S) as opened:
                    if opened.status == NOTHING_MORE:
                        return
                    if not opened.headers.get("content-type", "").startswith(EVENT_STREAM):
                        raise no_gateway(self.url)
                    async for piece in opened.pieces():
                        for message in parser.feed(piece):
                            if following.took(message):
                                yield event_of(message)
                            if following.ended:
                                return
            except SluiceError as lost:
                error = lost
            await asyncio.sleep(following.pause_s(error, parser.retry_s))

    async def pages(self, page: Callable[[str | None], Call[Page[M]]]) -> AsyncIterator[M]:
        """All of a listing, page after page."""
        cursor: str | None = None
        while True:
            found = await self.run(page(cursor))
            for item in found.items:
                yield item
            cursor = onward(cursor, found.next)
            if cursor is None:
                return
