"""Heartbeats: their content, their expiry, and reading them."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import fields
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from common.contracts import values_of
from common.contracts.models import McpState
from common.contracts.workers import (
    HistogramField,
    LimitField,
    LimitsField,
    ModelState,
    QueueReadingField,
    RunningField,
    TaskCounter,
    TaskHistogram,
    WaitingField,
    WorkerField,
)
from common.jobs.queue_stats import QueueReader, QueueReading
from common.observability import heartbeats
from common.observability.heartbeats import (
    Heartbeat,
    Histogram,
    LimitReading,
    LimitsReading,
    RunningJob,
    TaskNumbers,
    WaitingReading,
    read_heartbeats,
)
from common.process.host import HostReadings
from common.process.usage import LoopLag
from tests.conftest import eventually
from tests.worker.kit import Rig, RigMaker
from worker.monitoring import heartbeat as module
from worker.monitoring.heartbeat import HeartbeatSender


def sender(rigged: Rig, every_s: float = 5.0, **options: Any) -> HeartbeatSender:
    return HeartbeatSender(rigged.consumers, rigged.keys, every_s, LoopLag(), **options)


def test_members_are_those_of_the_contract() -> None:
    for model, enum in (
        (Heartbeat, WorkerField),
        (RunningJob, RunningField),
        (Histogram, HistogramField),
        (LimitsReading, LimitsField),
        (LimitReading, LimitField),
        (WaitingReading, WaitingField),
    ):
        assert names_in(model) == set(values_of(enum))
    assert names_in(QueueReading) == set(values_of(QueueReadingField))
    assert names_in(TaskNumbers) == {member.value for member in (*TaskCounter, *TaskHistogram)}


def names_in(kind: type[Any]) -> set[str]:
    return {each.name for each in fields(kind)}


def test_the_host_member_has_the_fields_that_are_read() -> None:
    assert names_in(HostReadings) == names_in(heartbeats.MachineReading)


async def test_members_of_services_survive_a_round_trip(fake_rig: RigMaker) -> None:
    spread = heartbeats.Histogram([1, 2], 1.5)
    said: dict[str, Any] = {
        "paused": True,
        "model": heartbeats.ModelReading(ModelState.READY, url="http://m", first_token=spread),
        "embedder": "small",
        "mcp": [heartbeats.McpReading("files", McpState.DOWN, "gone")],
        "webhooks": heartbeats.WebhooksReading(delivered=2),
        "images": heartbeats.ImagesReading(detector="none"),
        "bullmq": [heartbeats.BullmqReading("video", places=3)],
        "nobody_knows": object(),
    }
    telling = {name: lambda value=value: value for name, value in said.items()}
    rigged = fake_rig()
    await sender(rigged, fields=telling).run_once()
    [beat] = await read_heartbeats(rigged.client, rigged.keys)
    assert beat.paused
    assert beat.embedder == "small"
    assert beat.model is not None
    assert beat.model.first_token is not None
    assert beat.model.first_token == spread
    assert (beat.model.state, beat.model.url) == (ModelState.READY, "http://m")
    for name in ("webhooks", "images"):
        assert getattr(beat, name) == said[name]
    for name in ("mcp", "bullmq"):
        [read], [written] = getattr(beat, name), said[name]
        assert read == written


async def test_a_heartbeat(rig: RigMaker) -> None:
    entered = asyncio.Event()

    async def handler(context: Any, payload: Any) -> None:
        await context.emit("message", {})
        entered.set()
        await context.wait_for_cancel()

    rigged = rig(handler)
    rigged.start()
    [job_id] = await rigged.post()
    await asyncio.wait_for(entered.wait(), 10)
    box = HostReadings(memory_pressure=1.5, temperature_c=61.0)
    await sender(rigged, read_host=lambda: box, holding_why=lambda: "too hot").run_once()
    [beat] = await read_heartbeats(rigged.client, rigged.keys)
    assert (beat.consumer, beat.pid) == (rigged.worker.consumer, os.getpid())
    assert (beat.in_flight, beat.max_inflight, beat.tasks) == (1, 4, ["chat"])
    [running] = beat.running
    assert (running.job_id, running.task, running.attempt) == (job_id, "chat", 1)
    assert 0 <= beat.seen_ms - running.since_ms < 20_000
    assert (beat.holding, beat.holding_why, beat.draining) == (True, "too hot", False)
    assert beat.box == heartbeats.MachineReading.from_readings(box)
    assert beat.rss_bytes > 1 << 20
    assert beat.open_fds > 0
    assert beat.cpu_s > 0
    assert beat.events == 1
    assert beat.task_numbers["chat"].started == 1
    assert (beat.queue.pending, beat.queue.waiting, beat.queue.oldest_ms) == (1, 0, 0)
    assert beat.age_s() < 20


async def test_it_expires_soon_after_the_worker_is_gone(rig: RigMaker) -> None:
    rigged = rig()
    beating = sender(rigged, 5.0)
    await beating.run_once()
    key = rigged.keys.worker(rigged.worker.consumer)
    assert 10 <= await rigged.client.ttl(key) <= 15
    assert 0 < await rigged.client.ttl(rigged.keys.workers) <= 3600
    await beating.remove()
    assert not await rigged.client.exists(key, rigged.keys.workers)
    assert await read_heartbeats(rigged.client, rigged.keys) == []


async def test_names_of_workers_without_heartbeat_are_removed(
    fake_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WORKERS", 3)
    rigged = fake_rig()
    names = {"long-gone": 1, **{f"w{number}": 10**13 + number for number in range(5)}}
    await rigged.client.zadd(rigged.keys.workers, names)
    await sender(rigged).run_once()
    assert await rigged.client.zrange(rigged.keys.workers, 0, -1) == [b"w2", b"w3", b"w4"]


async def test_the_number_of_listed_jobs_is_limited(fake_rig: RigMaker) -> None:
    rigged = fake_rig(lambda context, payload: None, max_inflight=100)
    for _ in range(heartbeats.MOST_NAMED + 5):
        rigged.executor.run(await rigged.attempt()).close()
    assert len(sender(rigged).build(QueueReading()).running) == heartbeats.MOST_NAMED


async def test_a_stopping_worker_is_marked_as_draining(fake_rig: RigMaker) -> None:
    rigged = fake_rig()
    rigged.start()
    await rigged.stop()
    assert sender(rigged).build(QueueReading()).draining


async def test_heartbeats_continue_after_an_error(
    fake_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rigged = fake_rig()
    beating = sender(rigged, 0.01)
    once, tries = beating.run_once, 0

    async def shaky() -> Heartbeat:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise (ConnectionError, RuntimeError)[tries - 1]("trouble")
        return await once()

    monkeypatch.setattr(beating, "run_once", shaky)
    running = asyncio.create_task(beating.run())

    async def seen() -> bool:
        return bool(await read_heartbeats(rigged.client, rigged.keys))

    await eventually(seen)
    running.cancel()


async def test_remove_without_redis_returns_soon(fake_rig: RigMaker) -> None:
    rigged = fake_rig()

    class Away:
        def pipeline(self, **options: Any) -> Any:
            raise ConnectionError("away")

    rigged.consumer.connections = rigged.consumer.connections.__class__(Away(), None, None, None)  # type: ignore
    await asyncio.wait_for(sender(rigged).remove(), 5)


GARBAGE = [
    b"", b"[]", b"{}", b"\xff", b"null", b'"x"', b'{"consumer":"other"}', b'{"consumer":1}',
    b'{"consumer":"w","pid":-1}', b'{"consumer":"w","cpu_s":1e999}', b'{"consumer":"w","tally":[]}',
    b'{"consumer":"w","tally":{"chat":{"run":{"counts":["x"],"sum":0}}}}',
    b'{"consumer":"w","running":[' + b",".join([b"{}"] * 33) + b"]}",
    b'{"consumer":"w","host":"' + b"x" * 300_000 + b'"}', b"[" * 5000,
]  # fmt: skip


async def test_invalid_heartbeats_are_ignored(fake_rig: RigMaker) -> None:
    rigged = fake_rig()
    client, keys = rigged.client, rigged.keys
    good = Heartbeat(consumer="good").to_json()
    names: Any = {"good": 1, b"\xff\xfe": 2, "list": 3, "w": 4, "silent": 5}
    await client.zadd(keys.workers, names)
    await client.set(keys.worker("good"), good)
    await client.rpush(keys.worker("list"), "x")
    for raw in GARBAGE:
        await client.set(keys.worker("w"), raw)
        assert [beat.consumer for beat in await read_heartbeats(client, keys)] == ["good"], raw
    await client.set(keys.worker("w"), b'{"consumer":"w","added later":[1]}')
    assert [beat.consumer for beat in await read_heartbeats(client, keys)] == ["good", "w"]
    await client.delete(keys.workers)
    await client.set(keys.workers, "x")
    assert await read_heartbeats(client, keys) == []


async def test_the_newest_workers_are_read(
    fake_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "MOST_WORKERS", 2)
    rigged = fake_rig()
    for number in range(4):
        name = f"w{number}"
        await rigged.client.zadd(rigged.keys.workers, {name: number})
        await rigged.client.set(rigged.keys.worker(name), Heartbeat(consumer=name).to_json())
    found = await read_heartbeats(rigged.client, rigged.keys)
    assert [beat.consumer for beat in found] == ["w2", "w3"]


def test_histograms_of_another_version_are_left_out() -> None:
    raw: Any = {"consumer": "w", "tally": {"chat": {"run": {"counts": [1, 2], "sum": 3}}}}
    beat = Heartbeat.from_json(json.dumps(raw).encode(), "w")
    assert beat is not None
    assert beat.task_numbers["chat"].histogram(TaskHistogram.RUN) is None


def test_only_tasks_of_the_contract_become_labels() -> None:
    raw = {"consumer": "w", "tally": {"chat": {}, "unknown": {}, "dance": {}}}
    beat = Heartbeat.from_json(json.dumps(raw).encode(), "w")
    assert beat is not None
    assert set(beat.task_numbers) == {"chat", "unknown"}


# -- queue readings ----------------------------------------------------------------------------


async def read_queue(rigged: Rig) -> QueueReading:
    return await QueueReader(rigged.keys.queue, rigged.worker.group).read(rigged.client)


async def test_a_queue_that_does_not_exist(rig: RigMaker) -> None:
    reading = await read_queue(rig())
    assert (reading.length, reading.waiting, reading.pending, reading.oldest_ms) == (0, 0, 0, 0)


async def test_without_a_group_everything_waits(rig: RigMaker) -> None:
    rigged = rig()
    await rigged.client.xadd(rigged.keys.queue, {"a": "b"}, id="5000-0")
    await rigged.client.xadd(rigged.keys.queue, {"a": "b"}, id="6000-0")
    reading = await read_queue(rigged)
    assert (reading.length, reading.waiting, reading.pending) == (2, 2, 0)
    assert reading.oldest_ms == 5000
    assert reading.stream_bytes is None or reading.stream_bytes > 0


async def test_waiting_and_unacknowledged_messages(rig: RigMaker) -> None:
    rigged = rig()
    await rigged.group()
    for ms in range(1, 6):
        await rigged.client.xadd(rigged.keys.queue, {"a": "b"}, id=f"{ms}000-0")
    first, second = await rigged.take(2)
    queue, group = rigged.keys.queue, rigged.worker.group
    for message_id, idle_ms in ((first, 7000), (second, 90_000)):
        await rigged.client.execute_command(
            "XCLAIM", queue, group, "c1", 0, message_id, "IDLE", idle_ms
        )
    reading = await read_queue(rigged)
    assert (reading.length, reading.waiting, reading.pending) == (5, 3, 2)
    assert reading.oldest_ms == 3000
    assert reading.idle_ms is not None
    assert 90_000 <= reading.idle_ms < 120_000


async def test_entries_that_have_ended_do_not_wait(rig: RigMaker) -> None:
    rigged = rig()
    await rigged.group()
    for ms in range(1, 4):
        await rigged.client.xadd(rigged.keys.queue, {"a": "b"}, id=f"{ms}000-0")
    await rigged.client.xack(rigged.keys.queue, rigged.worker.group, *await rigged.take(3))
    reading = await read_queue(rigged)
    assert (reading.length, reading.waiting, reading.pending, reading.oldest_ms) == (3, 0, 0, 0)


async def test_a_key_of_another_type(rig: RigMaker) -> None:
    rigged = rig()
    await rigged.client.set(rigged.keys.queue, "x")
    assert await read_queue(rigged) == QueueReading()


def test_refused_commands_give_unknown_values() -> None:
    refused = NoPermissionError("this user has no permissions")
    reader = QueueReader("q", "g")
    assert reader.parse_replies([3, refused, refused, refused]) == QueueReading(length=3)
    assert reader.last_delivered_id is None
    assert reader.parse_replies([refused] * 4) == QueueReading()
    group = {"name": b"g", "last-delivered-id": b"5-0", "pending": 1, "lag": 2}
    reading = reader.parse_replies([3, [group], refused, 77])
    assert reading == QueueReading(length=3, waiting=2, pending=1, stream_bytes=77)
    assert reader.with_oldest(reading, refused) == reading
    assert QueueReading(length=3, pending=1).with_estimate().waiting == 2
    assert QueueReading(length=1, pending=3).with_estimate().waiting == 0
    assert QueueReading(length=3).with_estimate() == QueueReading(length=3)
    assert reading.with_estimate() == reading


async def test_loop_lag() -> None:
    lag = LoopLag(0.001)
    assert lag.worst_s == 0
    await lag.run_once()
    lag.record(0.5)
    lag.record(-1)
    assert lag.worst_s == 0.5
    for _ in range(30):
        lag.record(0.1)
    assert lag.worst_s == 0.1
