"""A master dies or is demoted under load: every acknowledged job ends exactly once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.support.gateway.harness import CHAT
from tests.support.processes.gateway import GatewayProcess, StartGateway
from tests.support.processes.jobs import KEYS, check_history
from tests.support.processes.retrying_clients import RetryingClients
from tests.support.processes.worker import Process
from tests.support.topologies import LONG_TIMEOUT_MS, SentinelSet, sentinel_set

pytestmark = [pytest.mark.process, pytest.mark.slow("starts twelve servers")]

#: Pause between two jobs of a client, because the machine runs twelve servers.
PAUSE_S = 0.01
#: Duration of the load before and after the failover.
LOAD_S = 1.0
#: Detection takes a second, then there is an election, on a busy machine. Before 7.0, a Sentinel
#: that was stalled itself does not act for half a minute.
RECOVERY_S = 90.0


@pytest.fixture(scope="module")
def servers() -> Iterator[SentinelSet]:
    with sentinel_set() as found:
        yield found


@pytest.fixture
def gateway_over(start_gateway: StartGateway) -> Callable[..., GatewayProcess]:
    def start(
        servers: SentinelSet, wait_replicas: int, wait_timeout_ms: int = 500
    ) -> GatewayProcess:
        settings = {"BACKPRESSURE_MAX_BACKLOG": "50000", "WAIT_REPLICAS": str(wait_replicas)}
        return start_gateway(servers.url, WAIT_TIMEOUT_MS=str(wait_timeout_ms), **settings)

    return start


def print_measurement(
    capsys: pytest.CaptureFixture[str], what: str, load: RetryingClients, recovery_s: float
) -> None:
    """Prints the measurement for docs/scaling.md."""
    with capsys.disabled():
        print(
            f"\nmaster {what}: {len(load.acknowledged)} jobs acknowledged, none lost; accepting "
            f"again after {recovery_s:.2f} s; refused meanwhile: {dict(load.refused)}"
        )


async def fail_over(
    servers: SentinelSet,
    gateway: GatewayProcess,
    name: str,
    failover: Callable[[], object],
    after: Callable[[], object] = lambda: None,
) -> tuple[RetryingClients, float]:
    """Runs load before, during and after the failover; returns it and the recovery time."""
    async with gateway.http_async() as client:
        load = RetryingClients(client, name, {"load": name}, PAUSE_S, RECOVERY_S)
        async with load.running():
            await load.recovered(time.monotonic())
            await asyncio.sleep(LOAD_S)
            began = time.monotonic()
            await asyncio.to_thread(failover)
            recovery_s = await load.recovered(began if name != "demoted" else time.monotonic())
            after()
            await asyncio.sleep(LOAD_S)
    return load, recovery_s


def start_worker(spawn: Callable[..., Process], servers: SentinelSet) -> Process:
    settings = {"lease_ms": 2000, "block_ms": 200, "consumer": "w", "echo_delay_ms": 5}
    return spawn("worker.echo_worker", redis_url=servers.url, **settings)


def test_a_write_with_too_few_replicas_can_be_repeated(
    gateway_over: Callable[..., GatewayProcess],
) -> None:
    def post(gateway: GatewayProcess) -> httpx.Response:
        return gateway.http.post("/v1/jobs", json=CHAT, headers={"Idempotency-Key": "again"})

    with sentinel_set(down_after_ms=LONG_TIMEOUT_MS) as servers:
        demanding = gateway_over(servers, wait_replicas=3, wait_timeout_ms=5000)
        for _ in range(2):
            answer = post(demanding)
            assert (answer.status_code, answer.json()["code"]) == (503, "not_replicated")
            assert answer.headers["Retry-After"] == "1"
            assert "2 of 3 replicas" in answer.json()["detail"]
        answer = post(gateway_over(servers, wait_replicas=2, wait_timeout_ms=5000))
        assert answer.status_code == 202
        assert answer.headers["Idempotent-Replayed"] == "true"
        assert servers.master.client.xlen(KEYS.queue) == 1


@pytest.mark.parametrize(("how", "wait_replicas"), [("killed", 1), ("frozen", 1), ("demoted", 2)])
async def test_a_lost_master_loses_no_acknowledged_job(
    servers: SentinelSet,
    gateway_over: Callable[..., GatewayProcess],
    spawn: Callable[..., Process],
    capsys: pytest.CaptureFixture[str],
    how: str,
    wait_replicas: int,
) -> None:
    """Killed: one of two replicas has the data, and Sentinels choose the one with more. Frozen: its
    connections stay open, and it does not know that it was replaced. Demoted: for a while there
    are two masters; only waiting for all replicas detects the old one.
    """
    servers.flush()
    servers.wait_in_sync(2)
    start_worker(spawn, servers)
    gateway, old = gateway_over(servers, wait_replicas), servers.master
    faults = {"killed": old.kill, "frozen": old.pause, "demoted": servers.failover}
    after = old.resume if how == "frozen" else lambda: None
    load, recovery_s = await fail_over(servers, gateway, how, faults[how], after)
    if how == "killed":
        assert servers.master is not old
    check_history(servers.master.client, list(load.acknowledged.values()))
    print_measurement(capsys, how, load, recovery_s)
    if how == "killed":
        old.start()  # it comes back as a replica
    servers.wait_in_sync(2)
