"""A worker on a host under pressure starts no new jobs and continues the running ones."""

from __future__ import annotations

import asyncio
import logging

import pytest

from common.process.host import CALM_S, HostReadings, pressure_bounds
from common.settings.worker import WorkerSettings
from tests.support.fake_host import HOT, NORMAL, FakeHost
from tests.support.waiting import eventually
from tests.support.worker.handlers import Gate
from tests.support.worker.harness import MakeWorker, WorkerHarness
from worker.monitoring.intake_gate import PressureGate


class PressuredWorker:
    """A worker, its host, and a clock."""

    def __init__(self, worker: WorkerHarness) -> None:
        self.worker = worker
        self.host = FakeHost()
        self.now = 0.0
        bounds = pressure_bounds(WorkerSettings(max_temperature_c=80.0))
        self.pressure = PressureGate(worker.slots, bounds, self.host, lambda: self.now)

    def heat(self) -> None:
        self.host.readings = HOT
        self.pressure.run_once()

    def cool(self) -> None:
        self.host.readings = NORMAL
        self.pressure.run_once()
        self.now += CALM_S
        self.pressure.run_once()


async def undelivered(worker: WorkerHarness) -> int:
    """How many messages were not delivered."""
    [group] = await worker.client.xinfo_groups(worker.keys.queue)
    entries = await worker.client.xrange(
        worker.keys.queue, f"({group['last-delivered-id'].decode()}"
    )
    return len(entries)


async def test_under_pressure_nothing_starts_and_running_jobs_continue(
    make_worker: MakeWorker,
) -> None:
    gate = Gate(closed=True)
    pressured = PressuredWorker(worker := make_worker(gate))
    [running] = await worker.post()
    worker.start(recover=True)
    await eventually(lambda: gate.begun == [running])
    pressured.heat()
    waiting = await worker.post(3)
    gate.open.set()
    assert await worker.settled(running) == b"done"
    assert await worker.consumer.recovery.run_once() == 0
    assert gate.begun == [running]
    pressured.cool()
    assert await worker.ended(waiting) == {b"done"}


async def test_a_worker_that_starts_hot_reads_nothing(make_worker: MakeWorker) -> None:
    """It stops like any other."""
    pressured = PressuredWorker(worker := make_worker(Gate()))
    await worker.group()
    pressured.heat()
    await worker.post(3)
    worker.start(recover=True)
    reading = asyncio.create_task(worker.reader.run_once())
    done, _ = await asyncio.wait({reading}, timeout=0.1)
    assert not done
    reading.cancel()
    await asyncio.wait_for(worker.stop(), 10)
    assert await undelivered(worker) == 3


async def test_messages_of_a_read_in_progress_wait(make_worker: MakeWorker) -> None:
    """A read in progress still returns messages; another worker may claim them."""
    pressured = PressuredWorker(worker := make_worker(Gate()))
    await worker.group()
    jobs = await worker.post(2)
    messages = await worker.messages()
    pressured.heat()
    worker.consumer.admission.offer(messages)
    assert len(worker.consumer.deferred) == 2
    assert await worker.pending() == 2
    worker.start()
    pressured.cool()
    assert await worker.ended(jobs) == {b"done"}


@pytest.mark.fakeredis_only
async def test_pressure_is_reported_and_logged_once(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="worker.monitoring.intake_gate")
    pressured = PressuredWorker(make_worker(Gate()))
    pressured.pressure.run_once()
    assert pressured.pressure.why == ""
    for _ in range(3):
        pressured.heat()
    assert pressured.pressure.why == "gpu-thermal is at 85.0 °C, 80 °C is the limit"
    host = pressured.pressure.host_readings()
    assert (host.temperature_c, host.memory_pressure, host.gpu_load) == (85.0, 0.0, 0.5)
    assert (host.available_bytes, host.power_mode) == (4 << 30, "15W")
    pressured.cool()
    assert caplog.messages == [
        "no new jobs are taken: gpu-thermal is at 85.0 °C, 80 °C is the limit",
        "jobs are taken again",
    ]


@pytest.mark.fakeredis_only
async def test_limits_without_a_reading_are_logged(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    host = FakeHost()
    host.readings = HostReadings(memory_pressure=0.0)
    bounds = pressure_bounds(WorkerSettings(max_memory_pressure=10.0, min_available_mb=100))
    PressureGate(make_worker(Gate()).slots, bounds, host)
    assert caplog.messages == [
        "MIN_AVAILABLE_MB ignored: the host or the sandbox does not report the value"
    ]


@pytest.mark.fakeredis_only
async def test_checks_continue_after_an_error(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressured = PressuredWorker(make_worker(Gate()))
    readings: list[HostReadings] = []

    def read() -> HostReadings:
        readings.append(HOT)
        if len(readings) == 1:
            raise RuntimeError("odd")
        return HOT

    monkeypatch.setattr(pressured.host, "read", read)
    monkeypatch.setattr("worker.monitoring.intake_gate.SAMPLE_INTERVAL_S", 0.0)
    checking = asyncio.create_task(pressured.pressure.run())
    await eventually(lambda: pressured.pressure.reasons)
    checking.cancel()
