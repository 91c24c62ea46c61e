"""What pages of the dashboard ask for again and again is asked of Redis once for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.callers import SCOPE_KEY, Caller
from gateway.dashboard.visits import PAGE_HEADER
from gateway.deeds import changes

#: How old an answer may be that another page gets, too.
FRESH_S: Final = 1.0
#: Answers that are remembered at once; there are few paths, and few who look at pages.
MOST_KEPT: Final = 256
#: Paths that pages poll.
POLLED: Final = frozenset(
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
_Question = tuple[str, str, frozenset[str], str, bytes]


class _Answer(NamedTuple):
    messages: list[Message]
    made: float


class PagePolls:
    """Pure ASGI, inside the guard: whoever gets a remembered answer may have it.

    However many pages are open, each of these questions is asked at most once a second for each
    key. Whatever changes something has all of them asked anew. Programs, which do not say that they
    are a page, always get an answer of their own.
    """

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._made: dict[_Question, _Answer] = {}
        self._making: dict[_Question, asyncio.Future[_Answer | None]] = {}
        #: Grows with every change: what was asked before one is not remembered after it.
        self._changes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif changes(scope):
            self._forget()
            try:
                await self._app(scope, receive, send)
            finally:
                self._forget()
        elif scope["path"] in POLLED and scope["method"] == "GET" and _by_page(scope):
            await self._shared(_question(scope), scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _forget(self) -> None:
        self._made.clear()
        self._making.clear()
        self._changes += 1

    async def _shared(
        self, question: _Question, scope: Scope, receive: Receive, send: Send
    ) -> None:
        made = self._made.get(question)
        if made is None or self._clock() - made.made >= FRESH_S:
            making = self._making.get(question)
            made = await asyncio.shield(making) if making is not None else None
        if made is None:  # nobody has asked, or who did has failed
            made = await self._ask(question, scope, receive)
        for message in made.messages:
            # Whoever sends it adds headers of its own.
            await send({**message, "headers": list(message.get("headers", ()))})

    async def _ask(self, question: _Question, scope: Scope, receive: Receive) -> _Answer:
        asked: asyncio.Future[_Answer | None] = asyncio.get_running_loop().create_future()
        self._making[question] = asked
        changes_before, made = self._changes, _Answer([], self._clock())

        async def keep(message: Message) -> None:
            made.messages.append(message)

        done = None
        try:
            await self._app(scope, receive, keep)
            done = made
        finally:
            if self._making.get(question) is asked:
                del self._making[question]
            if not asked.done():
                asked.set_result(done)
        if self._changes == changes_before:
            self._remember(question, made)
        return made

    def _remember(self, question: _Question, made: _Answer) -> None:
        """With what else is still good: some are long, and nobody may ever ask again."""
        now = self._clock()
        fresh = {each: old for each, old in self._made.items() if now - old.made < FRESH_S}
        self._made = fresh if len(fresh) < MOST_KEPT else {}
        self._made[question] = made


def _by_page(scope: Scope) -> bool:
    return any(name == PAGE_HEADER for name, _ in scope["headers"])


def _question(scope: Scope) -> _Question:
    caller: Caller = scope[SCOPE_KEY]
    return caller.key_id, caller.tenant, caller.scopes, scope["path"], scope["query_string"]
