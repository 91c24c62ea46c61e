"""What pages of the dashboard ask for again and again is asked of Redis once for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.auth.callers import SCOPE_KEY, Caller
from gateway.dashboard.request_checks import PAGE_HEADER
from gateway.http.security import is_mutating

#: How old an answer may be that another page gets, too.
CACHE_TTL_S: Final = 1.0
#: Answers that are remembered at once; there are few paths, and few who look at pages.
MAX_CACHED: Final = 256
#: Paths that pages poll.
POLLED_PATHS: Final = frozenset(
    (
        "/v1/status",
        "/v1/queues",
        "/v1/workers",
        "/v1/stats",
        "/v1/audit",
        "/api/workflow/webhooks/deliveries",
        "/api/workflow/webhooks/dlq",
    )
)

#: Who asks, and for what.
_CacheKey = tuple[str, str, frozenset[str], str, bytes]


class _CachedResponse(NamedTuple):
    messages: list[Message]
    created_at: float


class PollCacheMiddleware:
    """Pure ASGI, inside the guard: whoever gets a remembered answer may have it.

    However many pages are open, each of these questions is asked at most once a second for each
    key. Whatever changes something has all of them asked anew. Programs, which do not say that they
    are a page, always get an answer of their own.
    """

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._cache: dict[_CacheKey, _CachedResponse] = {}
        self._in_flight: dict[_CacheKey, asyncio.Future[_CachedResponse | None]] = {}
        #: Grows with every change: what was asked before one is not remembered after it.
        self._changes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif is_mutating(scope):
            self._forget()
            try:
                await self._app(scope, receive, send)
            finally:
                self._forget()
        elif (
            scope["path"] in POLLED_PATHS and scope["method"] == "GET" and _is_from_dashboard(scope)
        ):
            await self._shared(_cache_key(scope), scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _forget(self) -> None:
        self._cache.clear()
        self._in_flight.clear()
        self._changes += 1

    async def _shared(
        self, question: _CacheKey, scope: Scope, receive: Receive, send: Send
    ) -> None:
        made = self._cache.get(question)
        if made is None or self._clock() - made.created_at >= CACHE_TTL_S:
            making = self._in_flight.get(question)
            made = await asyncio.shield(making) if making is not None else None
        if made is None:  # nobody has asked, or who did has failed
            made = await self._fetch(question, scope, receive)
        for message in made.messages:
            # Whoever sends it adds headers of its own.
            await send({**message, "headers": list(message.get("headers", ()))})

    async def _fetch(self, question: _CacheKey, scope: Scope, receive: Receive) -> _CachedResponse:
        asked: asyncio.Future[_CachedResponse | None] = asyncio.get_running_loop().create_future()
        self._in_flight[question] = asked
        changes_before, made = self._changes, _CachedResponse([], self._clock())

        async def keep(message: Message) -> None:
            made.messages.append(message)

        done = None
        try:
            await self._app(scope, receive, keep)
            done = made
        finally:
            if self._in_flight.get(question) is asked:
                del self._in_flight[question]
            if not asked.done():
                asked.set_result(done)
        if self._changes == changes_before:
            self._remember(question, made)
        return made

    def _remember(self, question: _CacheKey, made: _CachedResponse) -> None:
        """With what else is still good: some are long, and nobody may ever ask again."""
        now = self._clock()
        fresh = {
            each: old for each, old in self._cache.items() if now - old.created_at < CACHE_TTL_S
        }
        self._cache = fresh if len(fresh) < MAX_CACHED else {}
        self._cache[question] = made


def _is_from_dashboard(scope: Scope) -> bool:
    return any(name == PAGE_HEADER for name, _ in scope["headers"])


def _cache_key(scope: Scope) -> _CacheKey:
    caller: Caller = scope[SCOPE_KEY]
    return caller.key_id, caller.tenant, caller.scopes, scope["path"], scope["query_string"]
