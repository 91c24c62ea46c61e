"""Lifecycle of event streams: heartbeats, slow clients, expiry, shutdown and disconnects."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sluice.gateway.events import subscriber as watch_module
from tests.gateway.observability.metrics.test_metrics import scrape
from tests.support.gateway.asgi import TIMEOUT_S, Exchange
from tests.support.gateway.faults import record_calls
from tests.support.gateway.harness import Gateway, Make, partitioned, settle
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only

NDJSON = {"accept": "application/x-ndjson"}


async def test_only_an_idle_stream_gets_heartbeats(make: Make) -> None:
    gateway, patient = make(sse_heartbeat_s=0.05), make(sse_heartbeat_s=30)
    job_id = await gateway.create()
    stream, busy = await gateway.client.watch(job_id), await patient.client.watch(job_id)
    await stream.event("queued")
    for _ in range(3):
        assert (await stream.block()).comment
    lines = await gateway.client.watch(job_id, NDJSON)
    kinds = set()
    while "heartbeat" not in kinds:
        piece = await lines.chunk()
        assert piece is not None
        kinds |= {json.loads(line)["type"] for line in piece.splitlines()}
    assert kinds == {"hello", "queued", "heartbeat"}
    await gateway.finish(job_id)
    assert [block.event for block in await stream.rest()] == ["done"]
    while (block := await busy.next()) is not None:
        assert block.comment is None


@partitioned
async def test_stream_of_an_expired_job_ends(make: Make) -> None:
    gateway = make(sse_heartbeat_s=0.05)
    kept, lost = await gateway.create(), await gateway.create()
    staying = await gateway.client.watch(kept)
    ending = await gateway.client.watch(lost)
    await ending.event("queued")
    keys = gateway.keys_of(lost)
    await gateway.redis.delete(keys.job(lost), keys.events(lost))
    assert [block.event for block in await ending.rest()][-1] == "gone"
    await gateway.finish(kept)
    assert [block.event for block in await staying.rest()][-1] == "done"
    assert gateway.hub.clients == 0


async def test_a_stream_ends_when_a_failover_lost_its_events(make: Make) -> None:
    """The new master's terminal event has a smaller id than an event that the client has."""
    gateway = make(sse_heartbeat_s=0.05)
    job_id, stream = await gateway.watched()
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
    streams[0].take.clear()
    await gateway.emit(job_id, "message")
    await asyncio.wait_for(streams[0].held_up.wait(), TIMEOUT_S)
    gateway.hub.close_streams()
    streams[0].take.set()
    for stream in streams:
        *events, last = await stream.rest()
        assert (last.event, last.id, last.retry) == ("shutdown", None, "500")
        assert last.json()["type"] == "shutdown"
        if stream is streams[0]:
            assert [event.event for event in events] == ["message"], "queued events come first"
    assert gateway.hub.clients == 0
    late = await gateway.client.watch(job_id)
    assert [block.event for block in await late.rest()][-1] == "shutdown"


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
async def test_clients_that_leave_during_a_send_are_removed(
    gateway: Gateway, headers: dict[str, str]
) -> None:
    """The server delays even the headers while earlier pipelined responses are unread."""
    job_id = await gateway.create()
    exchange = gateway.client.begin("GET", f"/v1/jobs/{job_id}/events", headers)
    exchange.take.clear()
    await asyncio.wait_for(exchange.held_up.wait(), TIMEOUT_S)
    exchange._hung_up.set()
    await asyncio.wait({exchange.task}, timeout=5)
    await settle()
    assert gateway.hub.clients == 0
    stream = await gateway.client.watch(job_id, headers)
    await stream.chunk()
    stream.take.clear()
    await gateway.emit(job_id, "message")
    await asyncio.wait_for(stream.held_up.wait(), TIMEOUT_S)
    stream._hung_up.set()
    await eventually(lambda: gateway.hub.clients == 0, 5)


async def test_slow_client_gets_every_event_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue overflows without delaying others, and it gets each event once, in order."""
    job_id = await gateway.create()
    slow, fast, fallen = await overflow(gateway, job_id, 300, monkeypatch)
    assert len(fallen) == 1, "no live delivery until it reads again"
    slow.take.set()
    await gateway.finish(job_id)
    assert [block.event for block in await fast.rest()] == ["done"]
    *messages, done = await slow.rest()
    assert [message.json()["data"]["n"] for message in messages] == list(range(300))
    assert done.event == "done"


async def overflow(
    gateway: Gateway, job_id: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Exchange, Exchange, list[Any]]:
    """A stream that is not read, one that is read, and the subscribers that fell back to Redis."""
    monkeypatch.setattr(watch_module, "MAX_QUEUED_BYTES", 1000)
    fallen: list[Any] = []
    real = watch_module.EventSubscriber._fall_back

    def fall_back(self: Any) -> None:
        fallen.append(self)
        real(self)

    monkeypatch.setattr(watch_module.EventSubscriber, "_fall_back", fall_back)
    slow, fast = await gateway.client.watch(job_id), await gateway.client.watch(job_id)
    await slow.event("queued")
    await fast.event("queued")
    slow.take.clear()
    for n in range(count):
        await gateway.emit(job_id, "message", {"n": n})
        assert (await fast.event("message")).json()["data"] == {"n": n}
    return slow, fast, fallen


async def test_slow_client_gets_a_gap_notice(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await gateway.create()
    slow, fast, _ = await overflow(gateway, job_id, 50, monkeypatch)
    await gateway.finish(job_id)
    await fast.event("done")
    await gateway.redis.xtrim(gateway.keys.events(job_id), maxlen=5, approximate=False)
    slow.take.set()
    events = [block.event for block in await slow.rest()]
    assert events[-6:] == ["gap", *["message"] * 4, "done"]
    assert len(events) < 12
    found = await scrape(gateway)
    assert (found.value("gw_sse_gap_total"), found.value("gw_sse_slow_total")) == (1, 1)


async def test_deleted_history_does_not_cause_a_busy_loop(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second client connects after the events that the first one got were deleted."""
    gateway = make(sse_heartbeat_s=0.1)
    job_id = await gateway.create()
    first = await gateway.client.watch(job_id)
    await first.event("queued")
    await eventually(lambda: gateway.hub._topics)
    await gateway.redis.xtrim(gateway.keys.events(job_id), maxlen=0, approximate=False)
    calls = record_calls(monkeypatch, gateway.reading, "execute_command")
    second = await gateway.client.watch(job_id)
    while (block := await second.next()) is not None and not block.comment:
        pass
    reads = [args for args in calls if args[0] == "XRANGE"]
    assert len(reads) < 20, "reads of an empty stream before the first heartbeat"
    await gateway.finish(job_id)
    assert [block.event for block in await second.rest()][-1] == "done"
