"""The history with real processes: restarts, crashes, two gateways."""

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
def start(aof: AofRedis, start_gateway: StartGateway) -> Callable[[], GatewayProcess]:
    return lambda: start_gateway(aof.url)


@pytest.fixture
def work(aof: AofRedis, spawn: Callable[..., Process]) -> Callable[[], Process]:
    """Starts echo workers."""
    return lambda: spawn("worker.echo_worker", redis_url=aof.url, heartbeat_s=1)


Start = Callable[[], GatewayProcess]
Work = Callable[[], Process]


def samples(server: AofRedis) -> list[tuple[int, dict[bytes, bytes]]]:
    found: Any = server.client.xrange(RING)
    return [(int(entry_id.split(b"-")[0]), fields) for entry_id, fields in found]


def counted(server: AofRedis) -> int:
    """Finished jobs."""
    return sum(int(fields[b"done"] or 0) for _, fields in samples(server))


def post(gateway: GatewayProcess, count: int) -> None:
    for _ in range(count):
        gateway.submit()


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
    aof: AofRedis, start: Start, work: Work
) -> None:
    gateway, worker = start(), work()
    sampled(aof)
    post(gateway, 20)
    wait_until(lambda: counted(aof) == 20, 30)
    wait_until(lambda: any(fields[b"end_to_end"] for _, fields in samples(aof)), 30)
    gateway.stop()
    before = samples(aof)
    worker.send_signal(signal.SIGTERM)
    worker.wait()
    aof.restart()
    assert samples(aof) == before
    gateway, worker = start(), work()
    sampled(aof)
    body = gateway.http.get("/v1/stats").json()
    assert sum(value or 0 for value in body["series"]["done"]) == 20
    assert body["series"]["ts"][0] == before[0][0]
    assert body["now"]["totals"]["done"] == 20
    times = [ts for ts, _ in samples(aof)]
    assert times == sorted(set(times))
    # Again, with all processes running.
    aof.restart()
    sampled(aof)
    post(gateway, 5)
    wait_until(lambda: counted(aof) == 25, 30)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_another_gateway_takes_over_from_an_ended_one(
    aof: AofRedis, start: Start, work: Work, how: signal.Signals
) -> None:
    work()
    gateways = [start(), start()]
    sampled(aof)
    keeper, other = keeper_and_other(gateways)
    keeper.stop(how)
    post(other, 10)
    wait_until(lambda: keeps(other), HANDOVER_S)
    wait_until(lambda: counted(aof) == 10, 30)
    if how is signal.SIGTERM:
        assert aof.client.hlen(StatsKeys("jobs:stream").gateways) == 1
