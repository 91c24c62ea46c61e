"""A real gateway with partitions on one server and on a Cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.contracts.jobs import JobKeys
from common.redis.partitions import Partitions
from tests.conftest import eventually
from tests.gateway.conftest import CHAT
from tests.gateway.processes import PYTHON_M, TIMEOUT_S, GatewayProcess, RawStream
from tests.support.backends import BUNDLED, RealServer, require_binary
from tests.topologies import RedisCluster, cluster

pytestmark = pytest.mark.process

Start = Callable[[str, int], GatewayProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a gateway with a Redis URL and a number of partitions."""
    with contextlib.ExitStack() as stack:

        def factory(url: str, partitions: int) -> GatewayProcess:
            settings = {"PORT": "0", "REDIS_URL": url, "QUEUE_PARTITIONS": str(partitions)}
            settings["BACKPRESSURE_MAX_BACKLOG"] = "5000"
            gateway = GatewayProcess(PYTHON_M, tmp_path / "log", **settings)
            stack.callback(gateway.close)
            return gateway.wait_until_listening()

        yield factory


@pytest.fixture
def server() -> Iterator[RealServer]:
    server = RealServer(require_binary(BUNDLED))
    yield server
    server.close()


@contextlib.asynccontextmanager
async def client_of(gateway: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://127.0.0.1:{gateway.port}"
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        yield client


async def create(client: httpx.AsyncClient) -> str:
    answer = await client.post("/v1/jobs", json=CHAT)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job_id"])


async def watch(gateway: GatewayProcess, job_id: str) -> RawStream:
    stream = await RawStream.open(gateway.port, f"/v1/jobs/{job_id}/events")
    while (block := await stream.next()) is not None and block.event != "queued":
        pass
    return stream


def finish(client: Any, keys: JobKeys, job_id: str) -> None:
    """Ends a job as the contract requires, without hints."""
    client.hset(keys.job(job_id), mapping={"status": "done", "result": "{}"})
    event = {"type": "done", "ts": "1", "step": "s", "data": "{}"}
    client.xadd(keys.events(job_id), event)


def connections(server: RealServer) -> int:
    """Number of connections, without the test's own."""
    listed: Any = server.client.client_list()
    return len(listed) - 1


async def test_partitions_on_one_server_share_connections(start: Start, server: RealServer) -> None:
    partitions = Partitions.create(JobKeys(), 8)
    gateway = start(server.url, partitions.count)
    async with client_of(gateway) as client:
        jobs = await asyncio.gather(*(create(client) for _ in range(40)))
    assert len({partitions.number(job_id) for job_id in jobs}) > 3
    streams = [await watch(gateway, job_id) for job_id in jobs]
    assert connections(server) <= 8
    for job_id, stream in zip(jobs, streams):
        finish(server.client, partitions.keys_for_job(job_id), job_id)
        assert [block.event for block in await stream.rest()] == ["done"]
        await stream.close()
    assert connections(server) <= 8


@pytest.mark.topology
async def test_a_dead_master_affects_only_its_partitions(start: Start) -> None:
    """Jobs of other partitions are accepted, read and watched meanwhile; jobs of the dead master's
    partitions are available again after the failover.
    """
    with cluster() as servers:
        await _lose_a_master(start, servers)


async def _lose_a_master(start: Start, servers: RedisCluster) -> None:
    partitions = Partitions.create(JobKeys(), 6)
    slots = [servers.slot_of(keys.queue) for keys in partitions.keys]
    home = servers.owner(slots[0])
    away = next(number for number, slot in enumerate(slots) if servers.owner(slot) is not home)
    dying = servers.owner(slots[away])
    lost = {number for number, slot in enumerate(slots) if servers.owner(slot) is dying}
    gateway = start(servers.url, partitions.count)
    async with client_of(gateway) as client:
        jobs = await asyncio.gather(*(create(client) for _ in range(60)))
        for job_id in jobs:
            keys = partitions.keys_for_job(job_id)
            owner = servers.owner(slots[partitions.number(job_id)])
            assert owner.client.exists(keys.job(job_id)), job_id
        kept = next(job_id for job_id in jobs if partitions.number(job_id) == 0)
        gone = next(job_id for job_id in jobs if partitions.number(job_id) in lost)
        streams = [await watch(gateway, job_id) for job_id in (kept, gone)]
        dying.kill()
        finish(home.client, partitions.keys_for_job(kept), kept)
        assert [block.event for block in await streams[0].rest()] == ["done"]
        made = [await _accepted(client) for _ in range(60)]
        taker = servers.wait_failover(dying, slots[away])

        async def read_again() -> bool:
            return (await client.get(f"/v1/jobs/{gone}")).status_code == 200

        await eventually(read_again, TIMEOUT_S)
        finish(taker.client, partitions.keys_for_job(gone), gone)
        assert [block.event for block in await streams[1].rest()] == ["done"]
        for job_id in made:
            assert (await client.get(f"/v1/jobs/{job_id}")).status_code == 200
        after = {partitions.number(await _accepted(client)) for _ in range(200)}
        assert after & lost  # used again
    for stream in streams:
        await stream.close()


async def _accepted(client: httpx.AsyncClient) -> str:
    """Posts a job until it is accepted: requests in progress when a server dies get 503."""
    for _ in range(20):
        answer = await client.post("/v1/jobs", json=CHAT)
        if answer.status_code == 202:
            return str(answer.json()["job_id"])
        assert answer.status_code == 503, answer.text
    raise AssertionError("the job was never accepted")
