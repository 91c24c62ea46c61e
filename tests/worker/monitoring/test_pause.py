"""A worker of a paused queue starts no new jobs and continues the running ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from common.aio import cancel
from common.contracts.queue import paused_key
from common.jobs.pause import PauseStore
from tests.conftest import eventually
from tests.worker.kit import Rig, RigMaker
from tests.worker.monitoring.test_pressure import Gate, PressuredWorker
from worker.monitoring.intake_gate import PauseGate


class Paused:
    """A worker with a pause gate, wired as in `worker.main`."""

    def __init__(self, worker: Rig, every_s: float = 60.0) -> None:
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
async def opened() -> AsyncIterator[list[Paused]]:
    made: list[Paused] = []
    yield made
    for each in made:
        await each.close()


async def test_a_paused_queue_starts_no_jobs_but_running_ones_continue(
    rig: RigMaker, opened: list[Paused]
) -> None:
    gate = Gate()
    worker = rig(gate.handle)
    opened.append(paused := Paused(worker))
    await worker.group()
    [running] = await worker.post()
    paused.start()
    worker.start(recover=True)
    await eventually(lambda: gate.began == [running])
    await paused.pauses.pause("local", "tea")
    await eventually(lambda: worker.slots.suspended)
    assert paused.pausing.why == "the queue is paused: tea"
    waiting = await worker.post(3)
    gate.open.set()
    assert await worker.settled(running) == b"done"
    assert await worker.consumer.recovery.run_once() == 0
    assert gate.began == [running]
    assert not worker.slots.interrupted
    await paused.pauses.resume()
    assert await worker.ended(waiting) == {b"done"}
    assert paused.pausing.why == ""


async def test_a_worker_that_starts_takes_nothing_of_a_paused_queue(
    rig: RigMaker, opened: list[Paused]
) -> None:
    gate = Gate()
    gate.open.set()
    worker = rig(gate.handle)
    opened.append(paused := Paused(worker))
    assert worker.slots.suspended, "nobody knows yet"
    await paused.pauses.pause("local", "")
    await worker.group()
    waiting = await worker.post(2)
    worker.start(recover=True)
    paused.start()
    await eventually(lambda: paused.pausing.paused)
    assert gate.began == []
    await paused.pauses.resume()
    assert await worker.ended(waiting) == {b"done"}


async def test_a_pause_is_found_without_a_message(rig: RigMaker, opened: list[Paused]) -> None:
    worker = rig(Gate().handle)
    opened.append(paused := Paused(worker, every_s=0.01))
    paused.start()
    await eventually(lambda: not worker.slots.suspended)
    await worker.client.set(paused_key(worker.keys.queue), "{}")
    await eventually(lambda: worker.slots.suspended)
    await worker.client.delete(paused_key(worker.keys.queue))
    await eventually(lambda: not worker.slots.suspended)


async def test_a_canceled_job_of_a_paused_queue_ends(rig: RigMaker, opened: list[Paused]) -> None:
    worker = rig(Gate().handle)
    opened.append(paused := Paused(worker))
    await paused.pauses.pause("local", "")
    await worker.group()
    [job_id] = await worker.post()
    worker.start()
    paused.start()
    await eventually(lambda: paused.pausing.paused)
    await worker.cancel(job_id)
    assert await worker.settled(job_id) == b"canceled"


async def test_pause_and_temperature_are_separate_reasons(rig: RigMaker) -> None:
    scenery = PressuredWorker(worker := rig(Gate().handle))
    pausing = PauseGate(worker.client, worker.keys.queue, worker.slots)
    pauses = PauseStore(worker.client, worker.keys)
    await pauses.pause("local", "")
    await pausing.run_once()
    scenery.heat()
    await pauses.resume()
    await pausing.run_once()
    assert worker.slots.suspended, "it is still hot"
    scenery.cool()
    assert not worker.slots.suspended


async def test_nothing_is_taken_while_the_state_is_unknown(
    rig: RigMaker, opened: list[Paused], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = rig(Gate().handle)
    opened.append(paused := Paused(worker))
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
    rig: RigMaker, caplog: pytest.LogCaptureFixture
) -> None:
    worker = rig(Gate().handle)
    await worker.client.sadd(paused_key(worker.keys.queue), "foreign")  # type: ignore[misc]
    pausing = PauseGate(worker.client, worker.keys.queue, worker.slots)
    with caplog.at_level(logging.WARNING):
        await pausing.run_once()
        await pausing.run_once()
    assert not worker.slots.suspended
    assert len(caplog.records) == 1


async def test_the_pause_is_logged_once(rig: RigMaker, caplog: pytest.LogCaptureFixture) -> None:
    worker = rig(Gate().handle)
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
