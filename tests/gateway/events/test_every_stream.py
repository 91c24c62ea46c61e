"""Rules of every event stream: formats, heartbeats, limits, shutdown, revoked keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sluice.common.contracts.images import Stage
from sluice.gateway.auth import callers as callers_module
from tests.support.gateway.access import bearer, id_of, key_for
from tests.support.gateway.asgi import TIMEOUT_S, Answer, Exchange
from tests.support.gateway.bullmq import QueueApi
from tests.support.gateway.harness import CHAT, Gateway, Make
from tests.support.gateway.images import BYTES, IMAGES, PNG, Images
from tests.support.gateway.sse import Block
from tests.support.gateway.workflows import JOBS, Workflows
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only

Headers = dict[str, str]


class Stream(NamedTuple):
    """The path of a stream, and a call that causes an event on it."""

    path: str
    cause_event: Callable[[], Awaitable[object]]


async def of_job(gateway: Gateway, caller: Headers) -> Stream:
    job_id = (await gateway.client.post(CHAT, caller)).json()["job_id"]
    return Stream(f"/v1/jobs/{job_id}/events", lambda: gateway.emit(job_id, "message"))


async def of_workflow(gateway: Gateway, caller: Headers) -> Stream:
    workflows = Workflows(gateway)
    job_id = await workflows.create_job(**caller)
    return Stream(f"{JOBS}/{job_id}/events/stream", lambda: workflows.start(job_id, "sources"))


async def _uploaded(gateway: Gateway, caller: Headers) -> str:
    image_id: str = (await gateway.client.send("POST", IMAGES, caller)).json()["image_id"]
    upload = f"{IMAGES}/{image_id}/upload"
    answer = await gateway.client.send("PUT", upload, {**PNG, **caller}, BYTES)
    assert answer.status == 202, answer
    return image_id


async def of_image(gateway: Gateway, caller: Headers) -> Stream:
    image_id = await _uploaded(gateway, caller)
    images = Images(gateway)
    path = f"{IMAGES}/{image_id}/events"
    return Stream(path, lambda: images.advance(image_id, Stage.VALIDATING))


async def of_images(gateway: Gateway, caller: Headers) -> Stream:
    image_ids = [await _uploaded(gateway, caller) for _ in range(2)]
    images = Images(gateway)
    path = f"{IMAGES}/events?image_ids={','.join(image_ids)}"
    return Stream(path, lambda: images.advance(image_ids[1], Stage.VALIDATING))


async def of_dashboard(gateway: Gateway, caller: Headers) -> Stream:
    return Stream("/v1/stream?only=jobs", lambda: gateway.client.post(CHAT, caller))


async def of_bullmq(gateway: Gateway, caller: Headers) -> Stream:
    return Stream("/v1/bullmq/video/events", lambda: QueueApi(gateway).emit("added", "1"))


Open = Callable[[Gateway, Headers], Awaitable[Stream]]
OPENERS = (of_job, of_workflow, of_image, of_images, of_dashboard, of_bullmq)
every_stream = pytest.mark.parametrize("opening", OPENERS, ids=lambda each: each.__name__)


@pytest.fixture
def build(make: Make, tmp_path: Path) -> Make:
    """Builds gateways with all features."""
    defaults = {"sluice_data_dir": str(tmp_path), "bullmq_add_queues": "video"}
    return lambda **settings: make(**{**defaults, **settings})


async def watch(gateway: Gateway, stream: Stream, headers: Headers | None = None) -> Exchange:
    exchange = await gateway.client.begin("GET", stream.path, headers or {}).start()
    assert exchange.status == 200
    return exchange


async def live(gateway: Gateway, exchange: Exchange) -> None:
    """Read on until all events are sent that are stored already: until a heartbeat."""
    while (block := await exchange.next()) is not None and block.comment is None:
        assert block.event != "shutdown"
    assert block is not None
    assert (block.comment or "").startswith("hb ")
    assert (block.event, block.data, block.id) == (None, None, None)


async def rest(exchange: Exchange) -> list[Block]:
    """The last events; fails if the stream does not end."""
    return await asyncio.wait_for(exchange.rest(), TIMEOUT_S)


def check_refused(answer: Answer, status: int, code: str) -> None:
    body = answer.json()
    found = body["errors"][0]["code"] if "success" in body else body["code"]
    assert (answer.status, found) == (status, code)


@every_stream
async def test_a_stream_has_two_formats(build: Make, opening: Open) -> None:
    gateway = build()
    stream = await opening(gateway, {})
    exchange = await watch(gateway, stream)
    assert exchange.header("content-type") == "text/event-stream; charset=utf-8"
    assert exchange.header("cache-control") == "no-store, no-transform"
    assert exchange.header("x-accel-buffering") == "no"
    assert exchange.header("vary") == "Accept"
    hello = await exchange.block()
    assert (hello.event, hello.retry, hello.id) == ("hello", "1000", None)
    lines = await watch(gateway, stream, {"accept": "application/x-ndjson"})
    assert (lines.header("content-type") or "").startswith("application/x-ndjson")
    text = await lines.chunk() or b""
    if opening is of_bullmq:
        await eventually(lambda: all(each.live for each in gateway.bullmq.hub._subscribers))
    await stream.cause_event()
    while text.count(b"\n") < 2:
        text += await lines.chunk() or b""
    types: list[Any] = [json.loads(line)["type"] for line in text.splitlines()]
    assert types[0] == "hello"
    assert "hello" not in types[1:]
    refused = await gateway.client.get(stream.path, {"accept": "image/png"})
    check_refused(refused, 406, "not_acceptable")
    for each in (exchange, lines):
        await each.hang_up()
    assert gateway.state.streams.clients == 0


@every_stream
async def test_the_number_of_streams_is_limited(build: Make, opening: Open) -> None:
    gateway = build(sse_max_clients=1)
    stream = await opening(gateway, {})
    exchange = await watch(gateway, stream)
    await exchange.next()
    answer = await gateway.client.get(stream.path)
    check_refused(answer, 503, "too_many_streams")
    assert int(answer.header("retry-after") or "") >= 1
    await exchange.hang_up()
    assert gateway.state.streams.clients == 0
    await watch(gateway, stream)


@every_stream
async def test_a_key_cannot_take_all_streams(build: Make, opening: Open) -> None:
    """A key may have ten of 20 streams here, and two are reserved for operators."""
    gateway = build(sse_max_clients=20)
    scopes = ("jobs:read", "jobs:write", "ui", "metrics")
    alpha, beta = [bearer(await key_for(gateway, scopes=scopes)) for _ in range(2)]
    admin = bearer(await key_for(gateway, scopes=("admin",)))
    stream = await opening(gateway, {})
    slots = gateway.state.stream_slots
    answers = await asyncio.gather(
        *(gateway.client.begin("GET", stream.path, alpha).start() for _ in range(15))
    )
    streams = [each for each in answers if each.status == 200]
    assert [len(streams), len(answers)] == [10, 15]
    refused = await gateway.client.get(stream.path, alpha)
    check_refused(refused, 503, "too_many_streams")
    assert b"of one key" in refused.body
    assert int(refused.header("retry-after") or "") >= 1
    streams += [await watch(gateway, stream, beta) for _ in range(8)]
    refused = await gateway.client.get(stream.path, beta)
    check_refused(refused, 503, "too_many_streams")
    assert b"SSE_MAX_CLIENTS), of which 2 are reserved" in refused.body
    streams += [await watch(gateway, stream, caller) for caller in (admin, {})]
    check_refused(await gateway.client.get(stream.path, admin), 503, "too_many_streams")
    for exchange in streams[:2]:
        await exchange.hang_up()
    await streams[-1].hang_up()
    assert slots.open == 17
    await watch(gateway, stream, alpha)


async def test_long_polls_count_as_streams(build: Make) -> None:
    gateway = build(sse_max_clients=100)
    alpha = bearer(await key_for(gateway))
    beta = bearer(await key_for(gateway))
    job_id = (await gateway.client.post(CHAT, alpha)).json()["job_id"]
    path, wait = f"/v1/jobs/{job_id}", {"prefer": "wait=60"}
    slots = gateway.state.stream_slots
    waiting = [gateway.client.begin("GET", path, {**alpha, **wait}) for _ in range(10)]
    await eventually(lambda: slots.open == 10)
    check_refused(await gateway.client.get(path, {**alpha, **wait}), 503, "too_many_streams")
    check_refused(await gateway.client.get(f"{path}/events", alpha), 503, "too_many_streams")
    # A request that has done its work is answered at once.
    assert (await gateway.client.post(CHAT, {**alpha, **wait})).status == 202
    workflows = Workflows(gateway)
    workflow = await workflows.create_job(**alpha)
    assert (await workflows.execute(workflow, "sources", **alpha, **wait)).status == 202
    assert (await gateway.client.get(path, alpha)).status == 200
    waiting.append(gateway.client.begin("GET", path, {**beta, **wait}))
    await eventually(lambda: slots.open == 11)
    assert (await gateway.client.send("DELETE", path, alpha)).status == 200
    for each in waiting:
        assert (await each.answer()).json()["status"] == "canceled"
    assert slots.open == 0
    assert not slots._by_key


@every_stream
async def test_a_stream_ends_at_shutdown_and_at_its_maximum_age(build: Make, opening: Open) -> None:
    gateway = build(sse_heartbeat_s=0.05)
    stream = await opening(gateway, {})
    exchange = await watch(gateway, stream)
    await live(gateway, exchange)
    gateway.state.streams.close_streams()
    for each in (exchange, await watch(gateway, stream)):
        last = (await rest(each))[-1]
        assert (last.event, last.id, last.retry) == ("shutdown", None, "500")
    assert gateway.state.streams.clients == 0
    aging = build(sse_max_life_s=0.05, sse_heartbeat_s=0.05)
    exchange = await watch(aging, await opening(aging, {}))
    assert (await rest(exchange))[-1].event == "shutdown"


@every_stream
async def test_a_stream_ends_when_its_key_is_revoked(
    build: Make, opening: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers_module, "CACHE_TTL_S", 0.0)
    gateway = build(auth="required", sse_heartbeat_s=0.05)
    tenant = {} if opening is of_bullmq else {"tenant": "shop"}
    key, other = [await key_for(gateway, name, **tenant) for name in "ab"]
    stream = await opening(gateway, bearer(key))
    exchange = await watch(gateway, stream, bearer(key))
    kept = await watch(gateway, stream, bearer(other))
    await live(gateway, exchange)
    await live(gateway, kept)
    await gateway.state.access.keys.revoke(id_of(key))
    if opening is of_dashboard:
        stream = await opening(gateway, bearer(other))
    await stream.cause_event()
    assert await rest(exchange) == []
    while (block := await asyncio.wait_for(kept.next(), TIMEOUT_S)) is not None and block.comment:
        pass
    assert block is not None, "a stream of another key continues"
