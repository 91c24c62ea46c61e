"""Gateway, workers and commands by TLS: on one server, a Sentinel set and a Cluster."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluice.common.errors import EXIT_CONFIG
from tests.support.processes import commands
from tests.support.processes.cluster import PARTITIONS, ClusterProcesses
from tests.support.processes.gateway import TIMEOUT_S, RawStream, StartGateway
from tests.support.processes.jobs import check_history
from tests.support.processes.retrying_clients import RetryingClients
from tests.support.processes.worker import Process
from tests.support.topologies import LONG_TIMEOUT_MS, Certificates, cluster, one_node, sentinel_set
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow("starts TLS servers and processes")]

RECOVERY_S = 90.0
HANDLERS = """
async def work(context, data):
    return data["n"]

def register(registry):
    registry.add_named("work", work)
"""


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "tls", client_required=True)


async def test_all_processes_on_one_server(
    certificates: Certificates,
    start_gateway: StartGateway,
    spawn: Callable[..., Process],
    tmp_path: Path,
) -> None:
    (tmp_path / "tls_handlers.py").write_text(HANDLERS)
    with one_node(tmp_path, certificates) as node:
        url = f"rediss://{node.address}/0{certificates.query}"
        gateway = start_gateway(url, BULLMQ_ADD_QUEUES="video")
        spawn("worker.echo_worker", redis_url=url)
        spawn(
            "worker.bullmq",
            redis_url=url,
            bullmq_queues="video",
            worker_handlers="tls_handlers",
            pythonpath=tmp_path,
            sluice_data_dir=tmp_path,
        )
        async with gateway.http_async() as client:
            kinds = await RawStream.event_types(gateway.port, gateway.submit())
            assert (kinds[0], kinds[-1]) == ("hello", "done")
            assert (await client.get("/readyz")).status_code == 200
            await bullmq_job_ends(client)
        check_commands(url)


async def bullmq_job_ends(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/bullmq/video/jobs", json={"name": "work", "data": {"n": 7}})
    assert answer.status_code == 202, answer.text
    path = answer.headers["location"]

    async def ended() -> Any:
        found = (await client.get(path)).json()
        return found if found["state"] in ("completed", "failed") else None

    assert (await eventually(ended, TIMEOUT_S))["state"] == "completed"


def check_commands(url: str) -> None:
    """The commands that connect to Redis themselves."""
    findings = json.loads(commands.run("doctor", "--json", REDIS_URL=url).out)["findings"]
    [reachable] = [each for each in findings if each["check"] == "redis.reachable"]
    assert reachable["status"] == "ok", reachable
    assert commands.run("key", "ls", REDIS_URL=url).code == 0
    assert commands.run("audit", "--local", REDIS_URL=url).code == 0


async def test_a_failover_of_a_sentinel_set(
    certificates: Certificates, start_gateway: StartGateway, spawn: Callable[..., Process]
) -> None:
    with sentinel_set(certificates=certificates) as servers:
        gateway = start_gateway(servers.url, WAIT_REPLICAS="1")
        spawn("worker.echo_worker", redis_url=servers.url, lease_ms=2000, block_ms=200)
        async with gateway.http_async() as client:
            load = RetryingClients(client, "tls", {"text": "hello"}, 0.02, RECOVERY_S)
            async with load.running():
                await load.recovered(time.monotonic(), 20)
                old = servers.master
                old.kill()
                await load.recovered(time.monotonic(), 20)
        assert servers.master is not old
        check_history(servers.master.client, list(load.acknowledged.values()))


async def test_partitions_on_a_cluster(
    certificates: Certificates, spawn: Callable[..., Process], tmp_path: Path
) -> None:
    with cluster(node_timeout_ms=LONG_TIMEOUT_MS, certificates=certificates) as servers:
        processes = ClusterProcesses(servers, spawn, tmp_path)
        try:
            processes.worker("one")
            async with processes.connected():
                jobs = await asyncio.gather(*(processes.post(ms=5) for _ in range(24)))
                assert len({PARTITIONS.number(job_id) for job_id in jobs}) == PARTITIONS.count
                assert (await RawStream.event_types(processes.gateway.port, jobs[0]))[-1] == "done"
                source = processes.owner(0)
                target = next(node for node in servers.masters if node is not source)
                servers.move_slot(processes.slot(0), target)
                jobs += await asyncio.gather(*(processes.post(ms=5) for _ in range(24)))
                await processes.check_history(jobs)
        finally:
            processes.close()


def test_an_untrusted_server_ends_the_start_with_one_line(
    certificates: Certificates, spawn: Callable[..., Process], tmp_path: Path
) -> None:
    with one_node(tmp_path, certificates) as node:
        for module in ("gateway", "worker.echo_worker"):
            process = spawn(module, redis_url=f"rediss://{node.address}/0", port=0)
            assert process.wait() == EXIT_CONFIG
            assert "the certificate of Redis is not trusted: self-signed" in process.log
            assert "ssl_ca_certs=" in process.log
            assert "Traceback" not in process.log
