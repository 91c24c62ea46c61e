"""A gateway whose host or workers are under pressure: new jobs wait or are refused."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from common.observability.heartbeats import Heartbeat
from common.process.host import CALM_S, pressure_bounds
from common.settings.gateway import GatewaySettings
from gateway.jobs.backpressure import PressureMonitor, PressureState
from tests.conftest import eventually
from tests.gateway.conftest import CHAT, Gateway, Make, check_problem
from tests.support.fake_host import HOT, NORMAL, FakeHost

WHY = "gpu-thermal is at 85.0 °C, 80 °C is the limit"


class Scenery:
    """Pressure with a host, workers and a clock of the test's own."""

    def __init__(self, **settings: Any) -> None:
        chosen = GatewaySettings(max_temperature_c=80.0, **settings)
        self.host = FakeHost()
        self.now = 0.0
        self.workers: list[Heartbeat] = []
        self.fault: Exception | None = None
        self.pressure = PressureMonitor(
            pressure_bounds(chosen),
            self._heartbeats,
            refuses=chosen.on_pressure == "refuse",
            host=self.host,
            clock=lambda: self.now,
        )

    async def _heartbeats(self) -> list[Heartbeat]:
        if self.fault is not None:
            raise self.fault
        return self.workers

    async def heat(self) -> None:
        self.host.readings = HOT
        await self.pressure.run_once()

    async def cool(self) -> None:
        self.host.readings = NORMAL
        await self.pressure.run_once()
        self.now += CALM_S
        await self.pressure.run_once()

    @property
    def state(self) -> PressureState:
        return self.pressure.view.state


def worker(name: str, why: str = "", **more: Any) -> Heartbeat:
    return Heartbeat(consumer=name, holding=bool(why), holding_why=why, **more)


async def test_a_hot_box_refuses_until_it_is_cool() -> None:
    scenery = Scenery()
    await scenery.pressure.run_once()
    assert (scenery.state, scenery.pressure.refusing) == (PressureState.ACCEPTING, False)
    await scenery.heat()
    assert (scenery.state, scenery.pressure.refusing) == (PressureState.REFUSING, True)
    assert scenery.pressure.view.reasons == (WHY,)
    assert scenery.pressure.view.readings == HOT
    await scenery.cool()
    assert (scenery.state, scenery.pressure.refusing) == (PressureState.ACCEPTING, False)


async def test_a_gateway_that_holds_accepts() -> None:
    scenery = Scenery(on_pressure="hold")
    await scenery.heat()
    assert (scenery.state, scenery.pressure.refusing) == (PressureState.HOLDING, False)
    assert scenery.pressure.view.reasons == (WHY,)


@pytest.mark.parametrize(
    ("workers", "state"),
    [
        ([], PressureState.ACCEPTING),
        ([worker("a")], PressureState.ACCEPTING),
        ([worker("a", "hot")], PressureState.REFUSING),
        ([worker("a", "hot"), worker("b", "full")], PressureState.REFUSING),
        ([worker("a", "hot"), worker("b")], PressureState.ACCEPTING),
        # One that is leaving takes nothing anyway.
        ([worker("a", "hot"), worker("b", draining=True)], PressureState.REFUSING),
        ([worker("b", "hot", draining=True)], PressureState.ACCEPTING),
    ],
)
async def test_one_worker_that_takes_jobs_is_enough(
    workers: list[Heartbeat], state: PressureState
) -> None:
    scenery = Scenery()
    scenery.workers = workers
    await scenery.pressure.run_once()
    assert scenery.state is state


async def test_the_reasons_of_workers_are_named() -> None:
    scenery = Scenery()
    scenery.workers = [worker(f"w{number}", "hot") for number in range(9)]
    await scenery.pressure.run_once()
    assert scenery.pressure.view.reasons == tuple(f"worker w{number}: hot" for number in range(4))


async def test_workers_that_cannot_be_asked_are_no_reason() -> None:
    scenery = Scenery()
    scenery.workers = [worker("a", "hot")]
    await scenery.pressure.run_once()
    scenery.fault = RedisConnectionError("away")
    await scenery.pressure.run_once()
    assert scenery.state is PressureState.ACCEPTING


async def test_it_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gateway.jobs.backpressure")
    scenery = Scenery()
    for _ in range(3):
        await scenery.heat()
    await scenery.cool()
    assert caplog.messages == [f"new jobs are refused: {WHY}", "new jobs are accepted again"]


async def test_a_look_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.jobs.backpressure.SAMPLE_INTERVAL_S", 0.0)
    scenery = Scenery()
    scenery.fault = RuntimeError("odd")
    looking = asyncio.create_task(scenery.pressure.run())
    await asyncio.sleep(0)
    scenery.fault, scenery.workers = None, [worker("a", "hot")]

    async def refuses() -> bool:
        return scenery.pressure.refusing

    await eventually(refuses)
    looking.cancel()


# -- by HTTP --------------------------------------------------------------------------------------


async def heat(gateway: Gateway) -> Any:
    """Make the gateway's host hot; returns it."""
    pressure: Any = gateway.state.pressure
    pressure._host = FakeHost()
    pressure._host.readings = HOT
    await pressure.run_once()
    return pressure


async def test_a_new_job_is_refused_and_nothing_is_written(make: Make) -> None:
    gateway = make(max_temperature_c=80.0)
    await heat(gateway)
    before = await gateway.snapshot()
    answer = await gateway.client.post(CHAT)
    problem = check_problem(answer, 503, "under_pressure")
    assert WHY in problem["detail"]
    assert 8 <= int(answer.header("retry-after") or 0) <= 12
    assert await gateway.snapshot() == before


async def test_a_request_with_a_fault_hears_of_the_fault(fake_make: Make) -> None:
    gateway = fake_make(max_temperature_c=80.0)
    await heat(gateway)
    check_problem(await gateway.client.post({"task": "dance"}), 422, "invalid_request")


async def test_a_repetition_gets_its_job(make: Make) -> None:
    """The job exists already; the client only missed the response."""
    gateway = make(max_temperature_c=80.0)
    key = {"idempotency-key": "k"}
    first = await gateway.client.post(CHAT, key)
    await heat(gateway)
    again = await gateway.client.post(CHAT, key)
    assert (again.status, again.json()) == (202, first.json())
    assert again.header("idempotent-replayed") == "true"
    other = await gateway.client.post({**CHAT, "payload": {}}, key)
    check_problem(other, 422, "idempotency_key_reused")
    fresh = await gateway.client.post(CHAT, {"idempotency-key": "other"})
    check_problem(fresh, 503, "under_pressure")


async def test_a_gateway_that_holds_takes_jobs(fake_make: Make) -> None:
    gateway = fake_make(max_temperature_c=80.0, on_pressure="hold")
    await heat(gateway)
    assert await gateway.create()


async def test_everything_else_is_served(fake_make: Make) -> None:
    gateway = fake_make(max_temperature_c=80.0)
    job_id = await gateway.create()
    await heat(gateway)
    assert (await gateway.client.get(f"/v1/jobs/{job_id}")).status == 200
    assert (await gateway.client.send("DELETE", f"/v1/jobs/{job_id}")).status < 300
    assert (await gateway.client.get("/readyz")).status == 200


async def test_what_workers_write_is_what_the_gateway_reads(make: Make) -> None:
    gateway = make()
    beat = worker("w1", "82 °C", seen_ms=1, every_s=5.0)
    await gateway.redis.set(gateway.keys.worker("w1"), beat.to_json())
    await gateway.redis.zadd(gateway.keys.workers, {"w1": 1})
    await gateway.state.pressure.run_once()
    problem = check_problem(await gateway.client.post(CHAT), 503, "under_pressure")
    assert "worker w1: 82 °C" in problem["detail"]
    await gateway.redis.delete(gateway.keys.worker("w1"))
    await gateway.state.pressure.run_once()
    assert await gateway.create()
