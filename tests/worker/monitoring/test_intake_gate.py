"""While a queue is paused or its host is under pressure, a worker starts no new jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from sluice.common.aio import cancel
from sluice.common.contracts.queue import paused_key
from sluice.common.jobs.pause import PauseStore
from sluice.common.process.host import CALM_S, HostReadings, pressure_bounds
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.monitoring.intake_gate import PauseGate, PressureGate
from tests.support.fake_host import HOT, NORMAL, FakeHost
from tests.support.waiting import eventually
from tests.support.worker.handlers import Gate
from tests.support.worker.harness import MakeWorker, WorkerHarness


class Pressure:
    """The pressure gate of a worker, its host, and a clock."""

    def __init__(self, worker: WorkerHarness) -> None:
        self.host = FakeHost()
        self.now = 0.0
        bounds = pressure_bounds(WorkerSettings(max_temperature_c=80.0))
        self.gate = PressureGate(worker.slots, bounds, self.host, lambda: self.now)

    def start(self) -> None:
        """The test runs the checks."""

    async def suspend(self) -> None:
        self.host.readings = HOT
        self.gate.run_once()

    async def resume(self) -> None:
        self.host.readings = NORMAL
        self.gate.run_once()
        self.now += CALM_S
        self.gate.run_once()


class Pause:
    """The pause gate of a worker, wired as in `sluice.worker.main`."""

    def __init__(self, worker: WorkerHarness, every_s: float = 60.0) -> None:
        self.store = PauseStore(worker.client, worker.keys)
        self.gate = PauseGate(worker.client, worker.keys.queue, worker.slots, every_s)
        worker.on_pause_change = self.gate.check_now
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self.gate.run())

    async def suspend(self) -> None:
        await self.store.pause("local", "tea")

    async def resume(self) -> None:
        await self.store.resume()

    async def close(self) -> None:
        if self._running is not None:
            await cancel(self._running)


MakePause = Callable[..., Pause]


@pytest.fixture
async def make_pause() -> AsyncIterator[MakePause]:
    made: list[Pause] = []

    def make(worker: WorkerHarness, **options: Any) -> Pause:
        made.append(Pause(worker, **options))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture(params=["pause", "pressure"])
def make_gate(request: pytest.FixtureRequest, make_pause: MakePause) -> Callable[..., Any]:
    return Pressure if request.param == "pressure" else make_pause


async def undelivered(worker: WorkerHarness) -> int:
    [group] = await worker.client.xinfo_groups(worker.keys.queue)
    entries = await worker.client.xrange(
        worker.keys.queue, f"({group['last-delivered-id'].decode()}"
    )
    return len(entries)


async def test_nothing_starts_and_running_jobs_continue(
    make_worker: MakeWorker, make_gate: Callable[..., Any]
) -> None:
    gate = Gate(closed=True)
    suspending = make_gate(worker := make_worker(gate))
    [running] = await worker.post()
    suspending.start()
    worker.start(recover=True)
    await eventually(lambda: gate.begun == [running])
    await suspending.suspend()
    await eventually(lambda: worker.slots.suspended)
    assert suspending.gate.why in (
        *("the queue is paused: tea", "gpu-thermal is at 85.0 °C, 80 °C is the limit"),
    )
    canceled, *waiting = await worker.post(3)
    gate.open.set()
    assert await worker.settled(running) == b"done"
    assert await worker.consumer.recovery.run_once() == 0
    await worker.cancel(canceled)
    assert await worker.settled(canceled) == b"canceled"
    assert gate.begun == [running]
    assert not worker.slots.interrupted
    await suspending.resume()
    assert await worker.ended(waiting) == {b"done"}
    assert suspending.gate.why == ""


async def test_a_worker_that_starts_suspended_reads_nothing(
    make_worker: MakeWorker, make_gate: Callable[..., Any]
) -> None:
    """It stops like any other."""
    suspending = make_gate(worker := make_worker(gate := Gate()))
    await worker.group()
    await suspending.suspend()
    await worker.post(3)
    worker.start(recover=True)
    suspending.start()
    await eventually(lambda: suspending.gate.why)
    reading = asyncio.create_task(worker.reader.run_once())
    done, _ = await asyncio.wait({reading}, timeout=0.1)
    assert not done
    reading.cancel()
    await asyncio.wait_for(worker.stop(), 10)
    assert await undelivered(worker) == 3
    assert gate.begun == []


async def test_messages_of_a_read_in_progress_wait(make_worker: MakeWorker) -> None:
    """A read in progress still returns messages; another worker may claim them."""
    pressure = Pressure(worker := make_worker(Gate()))
    await worker.group()
    jobs = await worker.post(2)
    messages = await worker.messages()
    await pressure.suspend()
    worker.consumer.admission.offer(messages)
    assert len(worker.consumer.deferred) == 2
    assert await worker.pending() == 2
    worker.start()
    await pressure.resume()
    assert await worker.ended(jobs) == {b"done"}


@pytest.mark.fakeredis_only
async def test_pause_and_pressure_are_separate_reasons(
    make_worker: MakeWorker, make_pause: MakePause, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is logged once."""
    caplog.set_level(logging.INFO, logger="sluice.worker.monitoring.intake_gate")
    worker = make_worker(Gate())
    pressure, pause = Pressure(worker), make_pause(worker)
    assert worker.slots.suspended, "the state is not known yet"
    for _ in range(2):
        await pause.gate.run_once()
        pressure.gate.run_once()
    assert (worker.slots.suspended, pause.gate.why, pressure.gate.why) == (False, "", "")
    await pause.store.pause("local", "tea")
    for _ in range(2):
        await pause.gate.run_once()
        await pressure.suspend()
    await pause.resume()
    for _ in range(2):
        await pause.gate.run_once()
        assert worker.slots.suspended, "it is still hot"
    await pressure.resume()
    assert not worker.slots.suspended
    assert caplog.messages == [
        "no new jobs are taken: the queue is paused: tea",
        "no new jobs are taken: gpu-thermal is at 85.0 °C, 80 °C is the limit",
        "queue resumed; jobs are taken again",
        "jobs are taken again",
    ]


# -- pause ------------------------------------------------------------------------------------


async def test_a_pause_is_found_without_a_message(
    make_worker: MakeWorker, make_pause: MakePause
) -> None:
    pause = make_pause(worker := make_worker(), every_s=0.01)
    pause.start()
    await eventually(lambda: not worker.slots.suspended)
    await worker.client.set(paused_key(worker.keys.queue), "{}")
    await eventually(lambda: worker.slots.suspended and pause.gate.paused)
    await worker.client.delete(paused_key(worker.keys.queue))
    await eventually(lambda: not worker.slots.suspended)


@pytest.mark.fakeredis_only
async def test_nothing_is_taken_while_the_state_is_unknown(
    make_worker: MakeWorker, make_pause: MakePause, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = make_pause(worker := make_worker())
    client: Any = worker.client
    get, is_away, calls = client.get, True, 0

    async def failing(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if is_away:
            raise ConnectionError("away")
        return await get(*args)

    monkeypatch.setattr(client, "get", failing)
    monkeypatch.setattr("sluice.worker.monitoring.intake_gate.RETRY_S", 0.01)
    pause.start()
    await eventually(lambda: calls > 2)
    assert worker.slots.suspended
    is_away = False
    await eventually(lambda: not worker.slots.suspended)
    is_away = True
    with pytest.raises(ConnectionError):
        await pause.gate.run_once()
    assert not worker.slots.suspended, "it is as it was"


async def test_a_key_of_another_type_counts_as_not_paused(
    make_worker: MakeWorker, make_pause: MakePause, caplog: pytest.LogCaptureFixture
) -> None:
    worker = make_worker()
    await worker.client.sadd(paused_key(worker.keys.queue), "foreign")  # type: ignore[misc]
    pause = make_pause(worker)
    with caplog.at_level(logging.WARNING):
        await pause.gate.run_once()
        await pause.gate.run_once()
    assert not worker.slots.suspended
    assert len(caplog.records) == 1


# -- pressure ---------------------------------------------------------------------------------


@pytest.mark.fakeredis_only
async def test_the_host_is_read_and_missing_readings_are_logged(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    worker = make_worker()
    pressure = Pressure(worker)
    await pressure.suspend()
    host = pressure.gate.host_readings()
    assert (host.temperature_c, host.memory_pressure, host.gpu_load) == (85.0, 0.0, 0.5)
    assert (host.available_bytes, host.power_mode) == (4 << 30, "15W")
    caplog.clear()
    silent = FakeHost()
    silent.readings = HostReadings(memory_pressure=0.0)
    bounds = pressure_bounds(WorkerSettings(max_memory_pressure=10.0, min_available_mb=100))
    PressureGate(worker.slots, bounds, silent)
    assert caplog.messages == [
        "MIN_AVAILABLE_MB ignored: the host or the sandbox does not report the value"
    ]


@pytest.mark.fakeredis_only
async def test_checks_continue_after_an_error(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressure = Pressure(make_worker())
    readings: list[HostReadings] = []

    def read() -> HostReadings:
        readings.append(HOT)
        if len(readings) == 1:
            raise RuntimeError("odd")
        return HOT

    monkeypatch.setattr(pressure.host, "read", read)
    monkeypatch.setattr("sluice.worker.monitoring.intake_gate.SAMPLE_INTERVAL_S", 0.0)
    checking = asyncio.create_task(pressure.gate.run())
    await eventually(lambda: pressure.gate.reasons)
    checking.cancel()
