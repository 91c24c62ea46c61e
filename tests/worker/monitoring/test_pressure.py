"""A worker on a host under pressure starts no new jobs and continues the running ones."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from common.process.host import CALM_S, HostReadings, pressure_bounds
from common.settings.worker import WorkerSettings
from tests.conftest import eventually
from tests.support.fake_host import HOT, NORMAL, FakeHost
from tests.worker.kit import Rig, RigMaker
from worker.monitoring.intake_gate import PressureGate


class PressuredWorker:
    """A worker, its host, and a clock."""

    def __init__(self, worker: Rig) -> None:
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


class Gate:
    """A handler that ends when it is released."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.open = asyncio.Event()

    async def handle(self, context: Any, payload: Any) -> None:
        self.began.append(context.job_id)
        await self.open.wait()


async def undelivered(worker: Rig) -> int:
    """How many messages were not delivered."""
    [group] = await worker.client.xinfo_groups(worker.keys.queue)
    entries = await worker.client.xrange(
        worker.keys.queue, f"({group['last-delivered-id'].decode()}"
    )
    return len(entries)


async def test_under_pressure_nothing_starts_and_running_jobs_continue(rig: RigMaker) -> None:
    gate = Gate()
    scenery = PressuredWorker(worker := rig(gate.handle))
    await worker.group()
    [running] = await worker.post()
    worker.start(recover=True)

    async def has_begun() -> bool:
        return gate.began == [running]

    await eventually(has_begun)
    scenery.heat()
    waiting = await worker.post(3)
    gate.open.set()
    assert await worker.settled(running) == b"done"
    assert await worker.consumer.recovery.run_once() == 0
    assert gate.began == [running]
    scenery.cool()
    assert await worker.ended(waiting) == {b"done"}


async def test_a_worker_that_starts_hot_reads_nothing(rig: RigMaker) -> None:
    gate = Gate()
    gate.open.set()
    scenery = PressuredWorker(worker := rig(gate.handle))
    await worker.group()
    scenery.heat()
    jobs = await worker.post(3)
    worker.start()
    reading = asyncio.create_task(worker.reader.run_once())
    done, _ = await asyncio.wait({reading}, timeout=0.2)
    assert not done
    assert await undelivered(worker) == 3
    scenery.cool()
    await reading
    assert await worker.ended(jobs) == {b"done"}


async def test_messages_of_a_read_in_progress_wait(rig: RigMaker) -> None:
    """A read in progress still returns messages; another worker may claim them."""
    gate = Gate()
    gate.open.set()
    scenery = PressuredWorker(worker := rig(gate.handle))
    await worker.group()
    jobs = await worker.post(2)
    messages = await worker.messages()
    scenery.heat()
    worker.consumer.admission.offer(messages)
    assert len(worker.consumer.deferred) == 2
    assert await worker.pending() == 2
    worker.start()
    scenery.cool()
    assert await worker.ended(jobs) == {b"done"}


async def test_a_suspended_worker_stops_like_any_other(rig: RigMaker) -> None:
    scenery = PressuredWorker(worker := rig(Gate().handle))
    await worker.group()
    scenery.heat()
    await worker.post(2)
    worker.start(recover=True)
    await asyncio.wait_for(worker.stop(), 10)
    assert await undelivered(worker) == 2


async def test_pressure_is_logged_once_with_its_reason(
    fake_rig: RigMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="worker.monitoring.intake_gate")
    scenery = PressuredWorker(fake_rig(Gate().handle))
    scenery.pressure.run_once()
    assert scenery.pressure.why == ""
    for _ in range(3):
        scenery.heat()
    assert scenery.pressure.why == "gpu-thermal is at 85.0 °C, 80 °C is the limit"
    scenery.cool()
    assert caplog.messages == [
        "no new jobs are taken: gpu-thermal is at 85.0 °C, 80 °C is the limit",
        "jobs are taken again",
    ]


async def test_limits_without_a_reading_are_logged(
    fake_rig: RigMaker, caplog: pytest.LogCaptureFixture
) -> None:
    host = FakeHost()
    host.readings = HostReadings(memory_pressure=0.0)
    bounds = pressure_bounds(WorkerSettings(max_memory_pressure=10.0, min_available_mb=100))
    PressureGate(fake_rig(Gate().handle).slots, bounds, host)
    assert caplog.messages == [
        "MIN_AVAILABLE_MB ignored: the host or the sandbox does not report the value"
    ]


async def test_the_heartbeat_has_the_reason(fake_rig: RigMaker) -> None:
    scenery = PressuredWorker(fake_rig(Gate().handle))
    scenery.heat()
    host = scenery.pressure.host_readings()
    assert (host.temperature_c, host.memory_pressure, host.gpu_load) == (85.0, 0.0, 0.5)
    assert (host.available_bytes, host.power_mode) == (4 << 30, "15W")


async def test_checks_continue_after_an_error(
    fake_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenery = PressuredWorker(fake_rig(Gate().handle))
    looks = 0

    def read() -> HostReadings:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise RuntimeError("odd")
        return HOT

    monkeypatch.setattr(scenery.host, "read", read)
    monkeypatch.setattr("worker.monitoring.intake_gate.SAMPLE_INTERVAL_S", 0.0)
    looking = asyncio.create_task(scenery.pressure.run())

    async def holds() -> bool:
        return bool(scenery.pressure.reasons)

    await eventually(holds)
    looking.cancel()
