"""A worker of a paused queue starts no new jobs and continues the running ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from common.aio import cancel
from common.contracts.queue import paused_key
from common.jobs.pause import PauseStore
from tests.support.waiting import eventually
from tests.support.worker.handlers import Gate
from tests.support.worker.harness import MakeWorker, WorkerHarness
from tests.worker.monitoring.test_pressure import PressuredWorker
from worker.monitoring.intake_gate import PauseGate


class Paused:
    """A worker with a pause gate, wired as in `worker.main`."""

    def __init__(self, worker: WorkerHarness, every_s: float = 60.0) -> None:
        self.pauses = PauseStore(worker.client, worker.keys)
        self.pausing = PauseGate(worker.client, worker.keys.queue, worker.slots, every_s)
        worker.on_pause_change = self.pausing.check_now
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self.pausing.run())

    async def close(self) -> None:
        if self._running is not None:
            await cancel(self._running)


@pytest.fixture
async def paused_worker(make_worker: MakeWorker) -> AsyncIterator[Callable[..., Any]]:
    """Makes workers, each with its gate."""
    made: list[Paused] = []

    def make(handler: Any = None, **options: Any) -> tuple[WorkerHarness, Paused]:
        worker = make_worker(handler or Gate())
        made.append(Paused(worker, **options))
        return worker, made[-1]

    yield make
    for each in made:
        await each.close()


async def test_a_paused_queue_starts_no_jobs_but_running_ones_continue(
    paused_worker: Callable[..., Any],
) -> None:
    gate = Gate(closed=True)
    worker, paused = paused_worker(gate)
    [running] = await worker.post()
    paused.start()
    worker.start(recover=True)
    await eventually(lambda: gate.begun == [running])
    await paused.pauses.pause("local", "tea")
    await eventually(lambda: worker.slots.suspended)
    assert paused.pausing.why == "the queue is paused: tea"
    canceled, *waiting = await worker.post(3)
    gate.open.set()
    assert await worker.settled(running) == b"done"
    assert await worker.consumer.recovery.run_once() == 0
    await worker.cancel(canceled)
    assert await worker.settled(canceled) == b"canceled"
    assert gate.begun == [running]
    assert not worker.slots.interrupted
    await paused.pauses.resume()
    assert await worker.ended(waiting) == {b"done"}
    assert paused.pausing.why == ""


async def test_a_worker_that_starts_takes_nothing_of_a_paused_queue(
    paused_worker: Callable[..., Any],
) -> None:
    worker, paused = paused_worker(gate := Gate())
    assert worker.slots.suspended, "nobody knows yet"
    await paused.pauses.pause("local", "")
    waiting = await worker.post(2)
    worker.start(recover=True)
    paused.start()
    await eventually(lambda: paused.pausing.paused)
    assert gate.begun == []
    await paused.pauses.resume()
    assert await worker.ended(waiting) == {b"done"}


async def test_a_pause_is_found_without_a_message(paused_worker: Callable[..., Any]) -> None:
    worker, paused = paused_worker(every_s=0.01)
    paused.start()
    await eventually(lambda: not worker.slots.suspended)
    await worker.client.set(paused_key(worker.keys.queue), "{}")
    await eventually(lambda: worker.slots.suspended)
    await worker.client.delete(paused_key(worker.keys.queue))
    await eventually(lambda: not worker.slots.suspended)


@pytest.mark.fakeredis_only
async def test_pause_and_temperature_are_separate_reasons(make_worker: MakeWorker) -> None:
    pressured = PressuredWorker(worker := make_worker(Gate()))
    pausing = PauseGate(worker.client, worker.keys.queue, worker.slots)
    pauses = PauseStore(worker.client, worker.keys)
    await pauses.pause("local", "")
    await pausing.run_once()
    pressured.heat()
    await pauses.resume()
    await pausing.run_once()
    assert worker.slots.suspended, "it is still hot"
    pressured.cool()
    assert not worker.slots.suspended


@pytest.mark.fakeredis_only
async def test_nothing_is_taken_while_the_state_is_unknown(
    paused_worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, paused = paused_worker()
    client: Any = worker.client
    get, away = client.get, [True]

    async def failing(*args: Any) -> Any:
        if away[0]:
            raise ConnectionError("away")
        return await get(*args)

    monkeypatch.setattr(client, "get", failing)
    monkeypatch.setattr("worker.monitoring.intake_gate.RETRY_S", 0.01)
    paused.start()
    await asyncio.sleep(0.05)
    assert worker.slots.suspended
    away[0] = False
    await eventually(lambda: not worker.slots.suspended)
    away[0] = True
    with pytest.raises(ConnectionError):
        await paused.pausing.run_once()
    assert not worker.slots.suspended, "it is as it was"


async def test_a_key_of_another_type_counts_as_not_paused(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    worker = make_worker(Gate())
    await worker.client.sadd(paused_key(worker.keys.queue), "foreign")  # type: ignore[misc]
    pausing = PauseGate(worker.client, worker.keys.queue, worker.slots)
    with caplog.at_level(logging.WARNING):
        await pausing.run_once()
        await pausing.run_once()
    assert not worker.slots.suspended
    assert len(caplog.records) == 1


@pytest.mark.fakeredis_only
async def test_the_pause_is_logged_once(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    worker = make_worker(Gate())
    pausing = PauseGate(worker.client, worker.keys.queue, worker.slots)
    pauses = PauseStore(worker.client, worker.keys)
    with caplog.at_level(logging.INFO, "worker.monitoring.intake_gate"):
        await pausing.run_once()
        await pauses.pause("local", "tea")
        await pausing.run_once()
        await pausing.run_once()
        await pauses.resume()
        await pausing.run_once()
        await pausing.run_once()
    assert [record.message for record in caplog.records] == [
        "no new jobs are taken: the queue is paused: tea",
        "queue resumed; jobs are taken again",
    ]
