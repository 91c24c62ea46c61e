"""429 at the backlog limit, and 503 while the gateway's host or its workers are under pressure."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from sluice.common.observability.heartbeats import Heartbeat
from sluice.common.process.host import CALM_S, pressure_bounds
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.jobs.backpressure import DrainRate, PressureMonitor, PressureState
from tests.support.fake_host import HOT, NORMAL, FakeHost
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only

WHY = "gpu-thermal is at 85.0 °C, 80 °C is the limit"


async def test_pending_and_unread_messages_of_the_group_count(make: Make) -> None:
    gateway = make(backpressure_max_backlog=3, worker_group="mine")
    queue = gateway.keys.queue
    for group in ("workers", "mine"):
        await gateway.redis.xgroup_create(queue, group, id="0", mkstream=True)
    answers = await asyncio.gather(*(gateway.client.post(CHAT) for _ in range(20)))
    assert sorted(answer.status for answer in answers) == [202] * 3 + [429] * 17
    got = await gateway.redis.xreadgroup("mine", "c1", {queue: ">"}, count=2)
    before = await gateway.snapshot()
    answer = await gateway.client.post(CHAT)
    assert check_problem(answer, 429, "queue_full")["detail"].startswith("3 jobs ")
    assert 1 <= int(answer.header("retry-after") or "") <= 360
    assert 1 <= int(answer.header("retry-after-ms") or "") <= 360_000
    assert await gateway.snapshot() == before
    await gateway.redis.xack(queue, "mine", got[0][1][0][0])
    await gateway.create()  # one acknowledgement admits one job
    check_problem(await gateway.client.post(CHAT), 429, "queue_full")


def test_retry_after_follows_the_drain_rate() -> None:
    rate = DrainRate(None)  # type: ignore[arg-type]
    assert 4 <= rate.retry_after_s(200, 200) <= 6  # nothing known
    for second in range(60):
        rate.sample(float(second), 10 * second)
    assert 8 <= rate.retry_after_s(299, 200) <= 12  # 100 too many at ten a second
    assert 0.8 <= rate.retry_after_s(200, 200) <= 1.2
    assert rate.retry_after_s(10**9, 200) <= 360
    rate.sample(61.0, 0)  # FLUSHALL
    assert rate.retry_after_s(200, 200) > 0
    for second in range(62, 200):
        rate.sample(float(second), 0)
    assert 4 <= rate.retry_after_s(200, 200) <= 6  # no job ends any more


async def test_the_drain_rate_is_read_from_the_counter(gateway: Gateway) -> None:
    await gateway.redis.hset(gateway.keys.counts, "done", "no number")
    await gateway.state.drain_rate.run_once()
    await gateway.redis.hset(gateway.keys.counts, "done", "12")
    await gateway.state.drain_rate.run_once()
    assert gateway.state.drain_rate.retry_after_s(1, 1) <= 1.2


# -- pressure --------------------------------------------------------------------------------------


class Scenario:
    """A pressure monitor with a fake host, heartbeats and clock."""

    def __init__(self, **settings: Any) -> None:
        config = GatewaySettings(max_temperature_c=80.0, **settings)
        self.host = FakeHost()
        self.now = 0.0
        self.workers: list[Heartbeat] = []
        self.fault: Exception | None = None
        self.pressure = PressureMonitor(
            pressure_bounds(config),
            self._heartbeats,
            refuses=config.on_pressure == "refuse",
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


async def test_a_hot_host_refuses_jobs_until_it_is_cool(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sluice.gateway.jobs.backpressure")
    scenario, holding = Scenario(), Scenario(on_pressure="hold")
    await scenario.pressure.run_once()
    assert (scenario.state, scenario.pressure.refusing) == (PressureState.ACCEPTING, False)
    for _ in range(3):
        await scenario.heat()
    assert (scenario.state, scenario.pressure.refusing) == (PressureState.REFUSING, True)
    assert scenario.pressure.view.readings == HOT
    await scenario.cool()
    assert (scenario.state, scenario.pressure.refusing) == (PressureState.ACCEPTING, False)
    assert caplog.messages == [f"new jobs are refused: {WHY}", "new jobs are accepted again"]
    await holding.heat()  # accepts jobs, which wait
    assert (holding.state, holding.pressure.refusing) == (PressureState.HOLDING, False)
    assert holding.pressure.view.reasons == (WHY,)


async def test_one_accepting_worker_is_enough() -> None:
    scenario = Scenario()
    hot, full, accepting = worker("a", "hot"), worker("b", "full"), worker("b")
    draining = worker("b", draining=True)  # takes no jobs anyway
    for workers, state in (
        ([], PressureState.ACCEPTING),
        ([accepting], PressureState.ACCEPTING),
        ([hot], PressureState.REFUSING),
        ([hot, full], PressureState.REFUSING),
        ([hot, accepting], PressureState.ACCEPTING),
        ([hot, draining], PressureState.REFUSING),
        ([worker("b", "hot", draining=True)], PressureState.ACCEPTING),
    ):
        scenario.workers = workers
        await scenario.pressure.run_once()
        assert scenario.state is state, workers


async def test_reasons_name_at_most_four_workers() -> None:
    scenario = Scenario()
    scenario.workers = [worker(f"w{number}", "hot") for number in range(9)]
    await scenario.pressure.run_once()
    assert scenario.pressure.view.reasons == tuple(f"worker w{number}: hot" for number in range(4))
    scenario.fault = RedisConnectionError("away")
    await scenario.pressure.run_once()
    assert scenario.state is PressureState.ACCEPTING, "unreachable heartbeats are no reason"


async def test_checks_continue_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.gateway.jobs.backpressure.SAMPLE_INTERVAL_S", 0.0)
    scenario = Scenario()
    scenario.fault = RuntimeError("odd")
    running = asyncio.create_task(scenario.pressure.run())
    await asyncio.sleep(0)
    scenario.fault, scenario.workers = None, [worker("a", "hot")]

    async def refuses() -> bool:
        return scenario.pressure.refusing

    await eventually(refuses)
    running.cancel()


# -- by HTTP --------------------------------------------------------------------------------------


async def heat(gateway: Gateway) -> None:
    """Make the gateway's host hot."""
    pressure: Any = gateway.state.pressure
    pressure._host = FakeHost()
    pressure._host.readings = HOT
    await pressure.run_once()


async def test_a_holding_gateway_accepts_requests(make: Make) -> None:
    gateway = make(max_temperature_c=80.0, on_pressure="hold")
    await heat(gateway)
    assert await gateway.create()


async def test_under_pressure_only_new_jobs_are_refused(make: Make) -> None:
    """A repeated request gets its job: the client only missed the response."""
    gateway = make(max_temperature_c=80.0)
    key = {"idempotency-key": "k"}
    first = await gateway.client.post(CHAT, key)
    job = f"/v1/jobs/{first.json()['job_id']}"
    await heat(gateway)
    before = await gateway.snapshot()
    answer = await gateway.client.post(CHAT, {"idempotency-key": "other"})
    problem = check_problem(answer, 503, "under_pressure")
    assert WHY in problem["detail"]
    assert 8 <= int(answer.header("retry-after") or 0) <= 12
    check_problem(await gateway.client.post({"task": "dance"}), 422, "invalid_request")
    again = await gateway.client.post(CHAT, key)
    assert (again.status, again.json()) == (202, first.json())
    assert again.header("idempotent-replayed") == "true"
    other = await gateway.client.post({**CHAT, "payload": {}}, key)
    check_problem(other, 422, "idempotency_key_reused")
    assert await gateway.snapshot() == before
    assert (await gateway.client.get(job)).status == 200
    assert (await gateway.client.send("DELETE", job)).status < 300
    assert (await gateway.client.get("/readyz")).status == 200


async def test_heartbeats_of_workers_are_read(gateway: Gateway) -> None:
    await gateway.heartbeat(worker("w1", "82 °C", seen_ms=1, every_s=5.0))
    await gateway.state.pressure.run_once()
    problem = check_problem(await gateway.client.post(CHAT), 503, "under_pressure")
    assert "worker w1: 82 °C" in problem["detail"]
    await gateway.redis.delete(gateway.keys.worker("w1"))
    await gateway.state.pressure.run_once()
    assert await gateway.create()
