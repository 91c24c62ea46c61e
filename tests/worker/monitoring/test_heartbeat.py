"""Heartbeats: their content, their expiry, and reading them."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import fields
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from sluice.common.contracts import values_of
from sluice.common.contracts.models import McpState
from sluice.common.contracts.workers import (
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
from sluice.common.jobs.queue_stats import QueueReader, QueueReading
from sluice.common.observability import heartbeats
from sluice.common.observability.heartbeats import (
    Heartbeat,
    Histogram,
    LimitReading,
    LimitsReading,
    RunningJob,
    TaskNumbers,
    WaitingReading,
    read_heartbeats,
)
from sluice.common.process.host import HostReadings
from sluice.common.process.usage import LoopLag
from sluice.worker.monitoring import heartbeat as module
from sluice.worker.monitoring.heartbeat import HeartbeatSender
from tests.support.waiting import eventually
from tests.support.worker.harness import MakeWorker, WorkerHarness


def sender(worker: WorkerHarness, every_s: float = 5.0, **options: Any) -> HeartbeatSender:
    return HeartbeatSender(worker.consumers, worker.keys, every_s, LoopLag(), **options)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (Heartbeat, values_of(WorkerField)),
        (RunningJob, values_of(RunningField)),
        (Histogram, values_of(HistogramField)),
        (LimitsReading, values_of(LimitsField)),
        (LimitReading, values_of(LimitField)),
        (WaitingReading, values_of(WaitingField)),
        (QueueReading, values_of(QueueReadingField)),
        (TaskNumbers, [member.value for member in (*TaskCounter, *TaskHistogram)]),
        (HostReadings, [each.name for each in fields(heartbeats.MachineReading)]),
    ],
)
def test_members_are_those_of_the_contract(model: type[Any], names: list[str]) -> None:
    assert {each.name for each in fields(model)} == set(names)


@pytest.mark.fakeredis_only
async def test_members_of_services_survive_a_round_trip(make_worker: MakeWorker) -> None:
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
    worker = make_worker()
    await sender(worker, fields=telling).run_once()
    [beat] = await read_heartbeats(worker.client, worker.keys)
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


async def test_a_heartbeat(make_worker: MakeWorker) -> None:
    entered = asyncio.Event()

    async def handler(context: Any, payload: Any) -> None:
        await context.emit("message", {})
        entered.set()
        await context.wait_for_cancel()

    worker = make_worker(handler)
    worker.start()
    [job_id] = await worker.post()
    await asyncio.wait_for(entered.wait(), 10)
    box = HostReadings(memory_pressure=1.5, temperature_c=61.0)
    await sender(worker, read_host=lambda: box, holding_why=lambda: "too hot").run_once()
    [beat] = await read_heartbeats(worker.client, worker.keys)
    assert (beat.consumer, beat.pid) == (worker.worker.consumer, os.getpid())
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


async def test_it_expires_soon_after_the_worker_is_gone(make_worker: MakeWorker) -> None:
    worker = make_worker()
    beating = sender(worker, 5.0)
    await beating.run_once()
    key = worker.keys.worker(worker.worker.consumer)
    assert 10 <= await worker.client.ttl(key) <= 15
    assert 0 < await worker.client.ttl(worker.keys.workers) <= 3600
    await beating.remove()
    assert not await worker.client.exists(key, worker.keys.workers)
    assert await read_heartbeats(worker.client, worker.keys) == []


@pytest.mark.fakeredis_only
async def test_the_numbers_of_workers_and_listed_jobs_are_limited(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WORKERS", 3)
    worker = make_worker(lambda context, payload: None, max_inflight=100)
    names = {"long-gone": 1, **{f"w{number}": 10**13 + number for number in range(5)}}
    await worker.client.zadd(worker.keys.workers, names)
    await sender(worker).run_once()
    assert await worker.client.zrange(worker.keys.workers, 0, -1) == [b"w2", b"w3", b"w4"]
    for _ in range(heartbeats.MOST_NAMED + 5):
        worker.executor.run(await worker.attempt()).close()
    assert len(sender(worker).build(QueueReading()).running) == heartbeats.MOST_NAMED
    worker.start()
    await worker.stop()
    assert sender(worker).build(QueueReading()).draining


@pytest.mark.fakeredis_only
async def test_heartbeats_continue_after_an_error(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker()
    beating = sender(worker, 0.01)
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
        return bool(await read_heartbeats(worker.client, worker.keys))

    await eventually(seen)
    running.cancel()


@pytest.mark.fakeredis_only
async def test_remove_without_redis_returns_soon(make_worker: MakeWorker) -> None:
    worker = make_worker()

    class Away:
        def pipeline(self, **options: Any) -> Any:
            raise ConnectionError("away")

    worker.consumer.connections = worker.consumer.connections.__class__(Away(), None, None, None)  # type: ignore
    await asyncio.wait_for(sender(worker).remove(), 5)


GARBAGE = [
    b"", b"[]", b"{}", b"\xff", b"null", b'"x"', b'{"consumer":"other"}', b'{"consumer":1}',
    b'{"consumer":"w","pid":-1}', b'{"consumer":"w","cpu_s":1e999}', b'{"consumer":"w","tally":[]}',
    b'{"consumer":"w","tally":{"chat":{"run":{"counts":["x"],"sum":0}}}}',
    b'{"consumer":"w","running":[' + b",".join([b"{}"] * 33) + b"]}",
    b'{"consumer":"w","host":"' + b"x" * 300_000 + b'"}', b"[" * 5000,
]  # fmt: skip


@pytest.mark.fakeredis_only
async def test_invalid_heartbeats_are_ignored(make_worker: MakeWorker) -> None:
    worker = make_worker()
    client, keys = worker.client, worker.keys
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


@pytest.mark.fakeredis_only
async def test_the_newest_workers_are_read(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "MOST_WORKERS", 2)
    worker = make_worker()
    for number in range(4):
        name = f"w{number}"
        await worker.client.zadd(worker.keys.workers, {name: number})
        await worker.client.set(worker.keys.worker(name), Heartbeat(consumer=name).to_json())
    found = await read_heartbeats(worker.client, worker.keys)
    assert [beat.consumer for beat in found] == ["w2", "w3"]


def test_only_tasks_and_histograms_of_the_contract_are_read() -> None:
    run = {"run": {"counts": [1, 2], "sum": 3}}  # of another version
    raw = {"consumer": "w", "tally": {"chat": run, "unknown": {}, "dance": {}}}
    beat = Heartbeat.from_json(json.dumps(raw).encode(), "w")
    assert beat is not None
    assert set(beat.task_numbers) == {"chat", "unknown"}
    assert beat.task_numbers["chat"].histogram(TaskHistogram.RUN) is None


# -- queue readings ----------------------------------------------------------------------------


async def read_queue(worker: WorkerHarness) -> QueueReading:
    return await QueueReader(worker.keys.queue, worker.worker.group).read(worker.client)


async def test_queues_without_pending_messages(make_worker: MakeWorker) -> None:
    """A queue that does not exist, one without a group, one whose messages have ended, and a key of
    another type."""
    worker = make_worker()

    async def read() -> tuple[Any, ...]:
        reading = await read_queue(worker)
        return reading.length, reading.waiting, reading.pending, reading.oldest_ms

    assert await read() == (0, 0, 0, 0)
    for ms in (5000, 6000):
        await worker.client.xadd(worker.keys.queue, {"a": "b"}, id=f"{ms}-0")
    assert await read() == (2, 2, 0, 5000)
    size = (await read_queue(worker)).stream_bytes
    assert size is None or size > 0
    await worker.group()
    await worker.client.xack(worker.keys.queue, worker.worker.group, *await worker.take(2))
    assert await read() == (2, 0, 0, 0)
    await worker.client.delete(worker.keys.queue)
    await worker.client.set(worker.keys.queue, "x")
    assert await read_queue(worker) == QueueReading()


async def test_waiting_and_unacknowledged_messages(make_worker: MakeWorker) -> None:
    worker = make_worker()
    await worker.group()
    for ms in range(1, 6):
        await worker.client.xadd(worker.keys.queue, {"a": "b"}, id=f"{ms}000-0")
    for message_id, idle_ms in zip(await worker.take(2), (7000, 90_000)):
        await worker.claim_for("c1", message_id, idle_ms)
    reading = await read_queue(worker)
    assert (reading.length, reading.waiting, reading.pending) == (5, 3, 2)
    assert reading.oldest_ms == 3000
    assert reading.idle_ms is not None
    assert 90_000 <= reading.idle_ms < 120_000


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
