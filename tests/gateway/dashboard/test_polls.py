"""However many pages are open, Redis is asked once for all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from gateway.auth.callers import LOCAL, SCOPE_KEY, Caller
from gateway.auth.permissions import PERMISSIONS
from gateway.dashboard.poll_cache import CACHE_TTL_S, POLLED_PATHS, PollCacheMiddleware
from tests.gateway.conftest import Gateway
from tests.gateway.dashboard.kit import PAGE

SOMEBODY = Caller("k1", "somebody", LOCAL.scopes, tenant="t1")


class Inner:
    """Counts what reaches it, and answers when it is let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.fault: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(f"{scope['method']} {scope['path']}")
        number = len(self.asked)
        await self.open.wait()
        if self.fault is not None:
            raise self.fault
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(number).encode()})


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def ask(
    polls: PollCacheMiddleware,
    path: str = "/v1/queues",
    *,
    method: str = "GET",
    caller: Caller = LOCAL,
    page: bool = True,
    query: bytes = b"",
) -> str:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        message.setdefault("headers", []).append((b"added", b"outside"))
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": [(b"x-sluice-ui", b"1")] if page else [],
        SCOPE_KEY: caller,
    }
    await polls(scope, receive, send)
    assert [len(message["headers"]) for message in sent] == [1, 1], "nobody else's"
    return bytes(sent[1]["body"]).decode()


async def test_pages_share_an_answer_for_a_second() -> None:
    inner, clock = Inner(), Clock()
    polls = PollCacheMiddleware(inner, clock)
    inner.open.clear()
    waiting = [asyncio.create_task(ask(polls)) for _ in range(20)]
    await asyncio.sleep(0)
    inner.open.set()
    assert await asyncio.gather(*waiting) == ["1"] * 20
    clock.now += CACHE_TTL_S - 0.01
    assert await ask(polls) == "1"
    clock.now += 0.02
    assert await ask(polls) == "2"


async def test_programs_and_other_questions_have_answers_of_their_own() -> None:
    inner = Inner()
    polls = PollCacheMiddleware(inner, Clock())
    assert await ask(polls) == "1"
    assert await ask(polls, page=False) == "2"
    assert await ask(polls, caller=SOMEBODY) == "3"
    assert await ask(polls, "/v1/stats", query=b"range=6h") == "4"
    assert await ask(polls, "/v1/stats", query=b"range=24h") == "5"
    assert await ask(polls, "/v1/jobs") == "6"
    assert await ask(polls, "/v1/jobs") == "7"
    assert await ask(polls, method="HEAD") == "8"
    assert await ask(polls) == "1"


async def test_after_a_change_nobody_sees_what_was_before() -> None:
    inner = Inner()
    polls = PollCacheMiddleware(inner, Clock())
    assert await ask(polls) == "1"
    await ask(polls, "/v1/queues/q/pause", method="POST")
    assert await ask(polls) == "3"
    # Asked before the change and answered after it.
    inner.open.clear()
    late = asyncio.create_task(ask(polls, "/v1/workers"))
    await asyncio.sleep(0)
    change = asyncio.create_task(ask(polls, "/v1/queues/q/pause", method="POST"))
    await asyncio.sleep(0)
    inner.open.set()
    await asyncio.gather(late, change)
    assert await ask(polls, "/v1/workers") == "6"


async def test_who_fails_or_leaves_does_not_take_the_others_along() -> None:
    inner = Inner()
    polls = PollCacheMiddleware(inner, Clock())
    inner.open.clear()
    first = asyncio.create_task(ask(polls))
    await asyncio.sleep(0)
    second = asyncio.create_task(ask(polls))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    inner.open.set()
    assert await second == "2"
    inner.fault = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        await ask(polls, "/v1/status")
    inner.fault = None
    assert await ask(polls, "/v1/status") == "4"


def test_what_is_polled_is_there() -> None:
    assert {("GET", path) for path in POLLED_PATHS} <= set(PERMISSIONS)


async def test_a_pause_shows_at_once(gateway: Gateway) -> None:
    async def paused() -> bool:
        answer = await gateway.client.send("GET", "/v1/queues", PAGE)
        return answer.json()["queues"][0]["paused"] is not None

    assert not await paused()
    name = gateway.state.settings.keys.queue
    answer = await gateway.client.send("POST", f"/v1/queues/{name}/pause", PAGE)
    assert answer.status == 200
    assert await paused()


async def test_what_is_old_is_not_kept() -> None:
    """An answer may be long, and questions differ in their columns."""
    inner, clock = Inner(), Clock()
    polls = PollCacheMiddleware(inner, clock)
    for number in range(20):
        await ask(polls, "/v1/stats", query=b"columns=%d" % number)
    assert len(polls._cache) == 20
    clock.now += CACHE_TTL_S
    await ask(polls)
    assert len(polls._cache) == 1
