"""A short-lived response cache for the endpoints that dashboard pages poll."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.gateway.auth.callers import SCOPE_KEY, Caller
from sluice.gateway.dashboard.request_checks import PAGE_HEADER
from sluice.gateway.http.security import is_mutating

#: Maximum age, in seconds, of a response that is served from the cache.
CACHE_TTL_S: Final = 1.0
#: Maximum number of cached responses. There are few polled paths and few dashboard users.
MAX_CACHED: Final = 256
#: Paths that the dashboard polls.
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

#: Key id, tenant and scopes of the caller, then path and query string.
_CacheKey = tuple[str, str, frozenset[str], str, bytes]


class _CachedResponse(NamedTuple):
    messages: list[Message]
    created_at: float


class PollCacheMiddleware:
    """Pure ASGI middleware. It runs behind authentication, and the cache key holds the caller.

    However many pages are open, each polled endpoint is executed at most once a second for each
    key. A mutating request clears the cache. Only requests with the header of the dashboard are
    served from the cache; other clients always get a fresh response.
    """

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._cache: dict[_CacheKey, _CachedResponse] = {}
        self._in_flight: dict[_CacheKey, asyncio.Future[_CachedResponse | None]] = {}
        #: Incremented by each mutating request, so that a response computed before the change is
        #: not cached after it.
        self._changes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif is_mutating(scope):
            self._clear()
            try:
                await self._app(scope, receive, send)
            finally:
                self._clear()
        elif (
            scope["path"] in POLLED_PATHS and scope["method"] == "GET" and _is_from_dashboard(scope)
        ):
            await self._serve_cached(_cache_key(scope), scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _clear(self) -> None:
        self._cache.clear()
        self._in_flight.clear()
        self._changes += 1

    async def _serve_cached(
        self, cache_key: _CacheKey, scope: Scope, receive: Receive, send: Send
    ) -> None:
        response = self._cache.get(cache_key)
        if response is None or self._clock() - response.created_at >= CACHE_TTL_S:
            in_flight = self._in_flight.get(cache_key)
            response = await asyncio.shield(in_flight) if in_flight is not None else None
        if response is None:  # no request is in flight, or the one in flight has failed
            response = await self._fetch(cache_key, scope, receive)
        for message in response.messages:
            # Copied, because outer middleware appends its own headers to the list.
            await send({**message, "headers": list(message.get("headers", ()))})

    async def _fetch(self, cache_key: _CacheKey, scope: Scope, receive: Receive) -> _CachedResponse:
        future: asyncio.Future[_CachedResponse | None] = asyncio.get_running_loop().create_future()
        self._in_flight[cache_key] = future
        changes_before, response = self._changes, _CachedResponse([], self._clock())

        async def keep(message: Message) -> None:
            response.messages.append(message)

        result = None
        try:
            await self._app(scope, receive, keep)
            result = response
        finally:
            if self._in_flight.get(cache_key) is future:
                del self._in_flight[cache_key]
            if not future.done():
                future.set_result(result)
        if self._changes == changes_before:
            self._store(cache_key, response)
        return response

    def _store(self, cache_key: _CacheKey, response: _CachedResponse) -> None:
        """Cache a response and drop expired ones, which may be large and never requested again."""
        now = self._clock()
        fresh = {key: old for key, old in self._cache.items() if now - old.created_at < CACHE_TTL_S}
        self._cache = fresh if len(fresh) < MAX_CACHED else {}
        self._cache[cache_key] = response


def _is_from_dashboard(scope: Scope) -> bool:
    return any(name == PAGE_HEADER for name, _ in scope["headers"])


def _cache_key(scope: Scope) -> _CacheKey:
    caller: Caller = scope[SCOPE_KEY]
    return caller.key_id, caller.tenant, caller.scopes, scope["path"], scope["query_string"]
