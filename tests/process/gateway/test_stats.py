"""History and live page with real processes: restarts, crashes, two gateways, many pages."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from common.contracts.stats import ONE_SECOND, StatsKeys
from tests.support.processes.aof import AofRedis
from tests.support.processes.gateway import GatewayProcess, StartGateway
from tests.support.processes.worker import Process, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow("waits for samples, one per second")]

RING = StatsKeys("jobs:stream").ring(ONE_SECOND)
KEEPS = "this gateway takes the samples from now on"
LOST = "another gateway takes the samples from now on"
#: Three seconds for the lock to expire, one to detect it, and more for a busy machine.
HANDOVER_S = 30.0


@pytest.fixture
def server(aof: AofRedis) -> AofRedis:
    return aof


@pytest.fixture
def start(server: AofRedis, start_gateway: StartGateway) -> Callable[[], GatewayProcess]:
    return lambda: start_gateway(server.url)


@pytest.fixture
def work(server: AofRedis, spawn: Callable[..., Process]) -> Callable[[], Process]:
    """Starts echo workers."""
    return lambda: spawn("worker.echo_worker", redis_url=server.url, heartbeat_s=1)


Start = Callable[[], GatewayProcess]
Work = Callable[[], Process]


def samples(server: AofRedis) -> list[tuple[int, dict[bytes, bytes]]]:
    found: Any = server.client.xrange(RING)
    return [(int(entry_id.split(b"-")[0]), fields) for entry_id, fields in found]


def counted(server: AofRedis, name: bytes = b"done") -> int:
    return sum(int(fields[name] or 0) for _, fields in samples(server))


def post(gateway: GatewayProcess, count: int = 1) -> list[str]:
    return [gateway.submit() for _ in range(count)]


def stats(gateway: GatewayProcess) -> Any:
    return gateway.http.get("/v1/stats").json()


def sampled(server: AofRedis, count: int = 2) -> None:
    """Waits for more samples."""
    before = len(samples(server))
    wait_until(lambda: len(samples(server)) >= before + count, 30)


def keeps(gateway: GatewayProcess) -> bool:
    """True if the gateway holds the history lock, as far as it knows; a stalled one loses it."""
    return gateway.log.rfind(KEEPS) > gateway.log.rfind(LOST)


def keeper_and_other(gateways: list[GatewayProcess]) -> list[GatewayProcess]:
    wait_until(lambda: [keeps(gateway) for gateway in gateways].count(True) == 1)
    return sorted(gateways, key=keeps, reverse=True)


def test_the_history_survives_restarts_of_all_processes(
    server: AofRedis, start: Start, work: Work
) -> None:
    gateway, worker = start(), work()
    sampled(server)
    post(gateway, 20)
    wait_until(lambda: counted(server) == 20, 30)
    wait_until(lambda: any(fields[b"end_to_end"] for _, fields in samples(server)), 30)
    gateway.stop()
    before = samples(server)
    worker.send_signal(signal.SIGTERM)
    worker.wait()
    server.restart()
    assert samples(server) == before
    gateway, worker = start(), work()
    sampled(server)
    body = stats(gateway)
    assert sum(value or 0 for value in body["series"]["done"]) == 20
    assert body["series"]["ts"][0] == before[0][0]
    assert body["now"]["totals"]["done"] == 20
    times = [ts for ts, _ in samples(server)]
    assert times == sorted(set(times))
    # Again, with all processes running.
    server.restart()
    sampled(server)
    post(gateway, 5)
    wait_until(lambda: counted(server) == 25, 30)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_another_gateway_takes_over_from_an_ended_one(
    server: AofRedis, start: Start, work: Work, how: signal.Signals
) -> None:
    work()
    gateways = [start(), start()]
    sampled(server)
    keeper, other = keeper_and_other(gateways)
    keeper.stop(how)
    post(other, 10)
    wait_until(lambda: keeps(other), HANDOVER_S)
    wait_until(lambda: counted(server) == 10, 30)
    if how is signal.SIGTERM:
        assert server.client.hlen(StatsKeys("jobs:stream").gateways) == 1


def test_a_pause_survives_restarts(server: AofRedis, start: Start, work: Work) -> None:
    gateway, worker = start(), work()
    worker.wait_for_line("takes jobs")
    paused = gateway.http.post("/v1/queues/jobs:stream/pause", json={"why": "tea"})
    assert paused.status_code == 200
    worker.wait_for_line("no new jobs are taken: the queue is paused: tea")
    gateway.stop()
    worker.send_signal(signal.SIGTERM)
    worker.wait()
    server.restart()
    gateway, worker = start(), work()
    worker.wait_for_line("no new jobs are taken: the queue is paused: tea")
    job_id = gateway.submit()

    def held() -> bool:
        workers = gateway.http.get("/v1/workers").json()["workers"]
        return any(each["holding"] and each["paused"] for each in workers)

    def status() -> str:
        return str(gateway.http.get(f"/v1/jobs/{job_id}").json()["status"])

    wait_until(held, 30)
    assert status() == "queued"
    assert gateway.http.post("/v1/queues/jobs:stream/resume").status_code == 200
    wait_until(lambda: status() == "done", 30)
