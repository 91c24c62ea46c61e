"""The poll cache: pages share responses, so that Redis is read once for all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from sluice.gateway.auth.callers import LOCAL, SCOPE_KEY, Caller
from sluice.gateway.auth.permissions import PERMISSIONS
from sluice.gateway.dashboard.poll_cache import CACHE_TTL_S, POLLED_PATHS, PollCacheMiddleware
from tests.support.gateway.dashboard import PAGE
from tests.support.gateway.harness import Gateway

OTHER_CALLER = Caller("k1", "other", LOCAL.scopes, tenant="t1")


class Inner:
    """An app that records its requests; it responds while `open` is set."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.fault: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append(f"{scope['method']} {scope['path']}")
        number = len(self.requests)
        await self.open.wait()
        if self.fault is not None:
            raise self.fault
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(number).encode()})


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def request(
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
    assert [len(message["headers"]) for message in sent] == [1, 1], "headers are not shared"
    return bytes(sent[1]["body"]).decode()


async def test_pages_share_a_response_for_a_second() -> None:
    inner, clock = Inner(), Clock()
    polls = PollCacheMiddleware(inner, clock)
    inner.open.clear()
    waiting = [asyncio.create_task(request(polls)) for _ in range(20)]
    await asyncio.sleep(0)
    inner.open.set()
    assert await asyncio.gather(*waiting) == ["1"] * 20
    clock.now += CACHE_TTL_S - 0.01
    assert await request(polls) == "1"
    clock.now += 0.02
    assert await request(polls) == "2"


async def test_other_requests_are_not_cached() -> None:
    inner = Inner()
    polls = PollCacheMiddleware(inner, Clock())
    for number, options in enumerate(
        (
            *({}, {"page": False}, {"caller": OTHER_CALLER}, {"method": "HEAD"}),
            *({"path": "/v1/stats", "query": query} for query in (b"range=6h", b"range=24h")),
            *({"path": "/v1/jobs"}, {"path": "/v1/jobs"}),
        ),
        1,
    ):
        assert await request(polls, **options) == str(number)
    assert await request(polls) == "1"


async def test_change_clears_the_cache() -> None:
    inner = Inner()
    polls = PollCacheMiddleware(inner, Clock())
    assert await request(polls) == "1"
    await request(polls, "/v1/queues/q/pause", method="POST")
    assert await request(polls) == "3"
    # A response that was requested before the change and finished after it is not cached.
    inner.open.clear()
    late = asyncio.create_task(request(polls, "/v1/workers"))
    await asyncio.sleep(0)
    change = asyncio.create_task(request(polls, "/v1/queues/q/pause", method="POST"))
    await asyncio.sleep(0)
    inner.open.set()
    await asyncio.gather(late, change)
    assert await request(polls, "/v1/workers") == "6"


async def test_failed_or_canceled_request_does_not_affect_others() -> None:
    inner = Inner()
    polls = PollCacheMiddleware(inner, Clock())
    inner.open.clear()
    first = asyncio.create_task(request(polls))
    await asyncio.sleep(0)
    second = asyncio.create_task(request(polls))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    inner.open.set()
    assert await second == "2"
    inner.fault = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        await request(polls, "/v1/status")
    inner.fault = None
    assert await request(polls, "/v1/status") == "4"


def test_polled_paths_exist() -> None:
    assert {("GET", path) for path in POLLED_PATHS} <= set(PERMISSIONS)


@pytest.mark.fakeredis_only
async def test_pause_is_visible_at_once(gateway: Gateway) -> None:
    async def paused() -> bool:
        answer = await gateway.client.send("GET", "/v1/queues", PAGE)
        return answer.json()["queues"][0]["paused"] is not None

    assert not await paused()
    name = gateway.state.settings.keys.queue
    answer = await gateway.client.send("POST", f"/v1/queues/{name}/pause", PAGE)
    assert answer.status == 200
    assert await paused()


async def test_expired_responses_are_dropped() -> None:
    """A response may be large, and requests differ in their columns."""
    inner, clock = Inner(), Clock()
    polls = PollCacheMiddleware(inner, clock)
    for number in range(20):
        await request(polls, "/v1/stats", query=b"columns=%d" % number)
    assert len(polls._cache) == 20
    clock.now += CACHE_TTL_S
    await request(polls)
    assert len(polls._cache) == 1
