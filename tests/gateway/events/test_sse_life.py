"""Lifecycle of event streams: heartbeats, slow clients, expiry, shutdown and disconnects."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.events import subscriber as watch_module
from tests.conftest import eventually
from tests.gateway.asgi import TIMEOUT_S
from tests.gateway.conftest import Gateway, Make, settle

NDJSON = {"accept": "application/x-ndjson"}


async def test_an_idle_stream_gets_heartbeats(make: Make) -> None:
    gateway = make(sse_heartbeat_s=0.05)
    job_id = await gateway.create()
    stream = await gateway.client.watch(job_id)
    await stream.event("queued")
    for _ in range(3):
        beat = await stream.next()
        assert beat is not None
        assert beat.comment is not None
        assert beat.comment.startswith("hb ")
        assert (beat.event, beat.data, beat.id) == (None, None, None)
    await gateway.finish(job_id)
    assert [block.event for block in await stream.rest()] == ["done"]


async def test_no_heartbeats_while_there_are_events(make: Make) -> None:
    gateway = make(sse_heartbeat_s=30)
    job_id = await gateway.create()
    stream = await gateway.client.watch(job_id)
    await gateway.finish(job_id)
    while (block := await stream.next()) is not None:
        assert block.comment is None


async def test_ndjson_heartbeats_are_lines(make: Make) -> None:
    gateway = make(sse_heartbeat_s=0.05)
    job_id = await gateway.create()
    stream = await gateway.client.watch(job_id, NDJSON)
    kinds = set()
    while "heartbeat" not in kinds:
        piece = await stream.chunk()
        assert piece is not None
        kinds |= {json.loads(line)["type"] for line in piece.splitlines()}
    assert kinds == {"hello", "queued", "heartbeat"}
    await stream.hang_up()
    assert gateway.hub.clients == 0


async def test_stream_of_an_expired_job_ends(make: Make) -> None:
    gateway = make(sse_heartbeat_s=0.05)
    kept, lost = await gateway.create(), await gateway.create()
    staying = await gateway.client.watch(kept)
    ending = await gateway.client.watch(lost)
    await ending.event("queued")
    await gateway.redis.delete(gateway.keys.job(lost), gateway.keys.events(lost))
    assert [block.event for block in await ending.rest()][-1] == "gone"
    await gateway.finish(kept)
    assert [block.event for block in await staying.rest()][-1] == "done"
    assert gateway.hub.clients == 0


async def test_a_stream_ends_when_a_failover_lost_its_events(make: Make) -> None:
    """The new master's terminal event has a smaller id than an event that the client has."""
    gateway = make(sse_heartbeat_s=0.05)
    job_id = await gateway.create()
    stream = await gateway.client.watch(job_id)
    await stream.event("queued")
    events = gateway.keys_of(job_id).events(job_id)
    fields: Any = {"type": "message", "ts": "1", "step": "test.step", "data": "{}"}
    await gateway.redis.xadd(events, fields, "99999999999999-0")
    seen = await stream.event("message")
    await gateway.redis.delete(events)
    await gateway.redis.xadd(events, {**fields, "type": "queued"}, "1-0")
    await gateway.redis.xadd(events, {**fields, "type": "done"}, "2-0")
    assert [block.event for block in await stream.rest()][-1] == "shutdown"
    resumed = await gateway.client.watch(job_id, {"last-event-id": str(seen.id)})
    assert resumed.status == 204


async def test_shutdown_ends_every_stream(gateway: Gateway) -> None:
    job_id = await gateway.create()
    streams = [await gateway.client.watch(job_id) for _ in range(10)]
    for stream in streams[:5]:  # some are live already, some are not
        await stream.event("queued")
    gateway.hub.close_streams()
    for stream in streams:
        last = (await stream.rest())[-1]
        assert (last.event, last.id, last.retry) == ("shutdown", None, "500")
        assert last.json()["type"] == "shutdown"
    assert gateway.hub.clients == 0
    late = await gateway.client.watch(job_id)
    assert [block.event for block in await late.rest()][-1] == "shutdown"


async def test_shutdown_frame_comes_after_queued_events(gateway: Gateway) -> None:
    job_id = await gateway.create()
    stream = await gateway.client.watch(job_id)
    await stream.event("queued")
    stream.take.clear()
    await gateway.emit(job_id, "message")
    await asyncio.wait_for(stream.held_up.wait(), TIMEOUT_S)
    gateway.hub.close_streams()
    stream.take.set()
    assert [block.event for block in await stream.rest()] == ["message", "shutdown"]


async def test_stream_ends_at_its_maximum_age(make: Make) -> None:
    gateway = make(sse_max_life_s=0.1, sse_heartbeat_s=0.1)
    job_id = await gateway.create()
    stream = await gateway.client.watch(job_id)
    assert [block.event for block in await stream.rest()][-1] == "shutdown"


@pytest.mark.parametrize("headers", [{}, NDJSON], ids=["sse", "ndjson"])
async def test_disconnected_clients_are_removed(gateway: Gateway, headers: dict[str, str]) -> None:
    job_id = await gateway.create()
    streams = [await gateway.client.watch(job_id, headers) for _ in range(10)]
    for stream in streams:
        await stream.chunk()
    assert gateway.hub.clients == 10
    for stream in streams:
        await stream.hang_up()
    await settle()
    assert gateway.hub.clients == 0
    assert not gateway.hub._topics
    assert not any(reader.dirty for reader in gateway.hub._readers)


@pytest.mark.parametrize("headers", [{}, NDJSON], ids=["sse", "ndjson"])
async def test_client_that_leaves_before_the_first_byte_is_removed(
    fake_gateway: Gateway, headers: dict[str, str]
) -> None:
    """The server delays even the headers while earlier pipelined responses are unread."""
    job_id = await fake_gateway.create()
    exchange = fake_gateway.client.begin("GET", f"/v1/jobs/{job_id}/events", headers)
    exchange.take.clear()
    await asyncio.wait_for(exchange.held_up.wait(), TIMEOUT_S)
    exchange._hung_up.set()
    await asyncio.wait({exchange.task}, timeout=5)
    await settle()
    assert fake_gateway.hub.clients == 0


@pytest.mark.parametrize("headers", [{}, NDJSON], ids=["sse", "ndjson"])
async def test_client_that_leaves_during_a_send_is_removed(
    fake_gateway: Gateway, headers: dict[str, str]
) -> None:
    job_id = await fake_gateway.create()
    stream = await fake_gateway.client.watch(job_id, headers)
    await stream.chunk()
    stream.take.clear()
    await fake_gateway.emit(job_id, "message")
    await asyncio.wait_for(stream.held_up.wait(), TIMEOUT_S)
    stream._hung_up.set()
    await eventually(lambda: fake_gateway.hub.clients == 0, 5)


async def test_slow_client_gets_every_event_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue overflows without delaying others, and it gets each event once, in order."""
    monkeypatch.setattr(watch_module, "MAX_QUEUED_BYTES", 2000)
    fallen: list[Any] = []
    fall_back = watch_module.EventSubscriber._fall_back
    monkeypatch.setattr(
        watch_module.EventSubscriber,
        "_fall_back",
        lambda self: (fallen.append(self), fall_back(self)),
    )
    job_id = await gateway.create()
    slow, fast = await gateway.client.watch(job_id), await gateway.client.watch(job_id)
    await slow.event("queued")
    await fast.event("queued")
    slow.take.clear()
    for n in range(300):
        await gateway.emit(job_id, "message", {"n": n})
        got = await fast.event("message")
        assert got.json()["data"] == {"n": n}
    assert len(set(fallen)) == 1
    assert len(fallen) == 1, "no live delivery until it reads again"
    slow.take.set()
    await gateway.finish(job_id)
    assert [block.event for block in await fast.rest()] == ["done"]
    *messages, done = await slow.rest()
    assert [message.json()["data"]["n"] for message in messages] == list(range(300))
    assert done.event == "done"


async def test_slow_client_gets_a_gap_notice(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "MAX_QUEUED_BYTES", 1000)
    job_id = await gateway.create()
    slow, fast = await gateway.client.watch(job_id), await gateway.client.watch(job_id)
    await slow.event("queued")
    await fast.event("queued")
    slow.take.clear()
    for n in range(50):
        await gateway.emit(job_id, "message", {"n": n})
        await fast.event("message")
    await gateway.finish(job_id)
    await fast.event("done")
    await gateway.redis.xtrim(gateway.keys.events(job_id), maxlen=5, approximate=False)
    slow.take.set()
    events = [block.event for block in await slow.rest()]
    assert events[-6:] == ["gap", "message", "message", "message", "message", "done"]
    assert len(events) < 12


async def test_deleted_history_does_not_cause_a_busy_loop(make: Make) -> None:
    """A second client connects after the events that the first one got were deleted."""
    gateway = make(sse_heartbeat_s=0.1)
    job_id = await gateway.create()
    first = await gateway.client.watch(job_id)
    await first.event("queued")
    await eventually(lambda: gateway.hub._topics)
    await gateway.redis.xtrim(gateway.keys.events(job_id), maxlen=0, approximate=False)
    calls = 0
    execute = gateway.reading.execute_command

    async def counting(*args: Any) -> Any:
        nonlocal calls
        calls += args[0] == "XRANGE"
        return await execute(*args)

    gateway.reading.execute_command = counting
    second = await gateway.client.watch(job_id)
    while (block := await second.next()) is not None and not block.comment:
        pass
    assert calls < 20, f"{calls} reads of an empty stream before the first heartbeat"
    await gateway.finish(job_id)
    assert [block.event for block in await second.rest()][-1] == "done"
