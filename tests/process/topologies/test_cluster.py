"""Real processes on a Cluster of six nodes: jobs over HTTP, and masters that die or slots that move
under load. No acknowledged job is lost, and none ends twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes.cluster import PARTITIONS, ClusterProcesses, Load
from tests.support.processes.gateway import RawStream
from tests.support.processes.worker import Process, spawner
from tests.support.topologies import LONG_TIMEOUT_MS, RedisCluster, cluster
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.topology]

TIMEOUT_S = 60.0
#: Duration of the load before and after a change.
LOAD_S = 1.0


@pytest.fixture(scope="module")
def shared_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """One gateway and two workers for all tests, because they start slowly."""
    folder = tmp_path_factory.mktemp("cluster")
    with (
        cluster(node_timeout_ms=LONG_TIMEOUT_MS) as servers,
        contextlib.contextmanager(spawner)(folder) as spawn,
    ):
        made = ClusterProcesses(servers, spawn, folder)
        try:
            for name in ("one", "two"):
                made.worker(name)
            yield made
        finally:
            made.close()


@pytest.fixture
async def processes(shared_processes: ClusterProcesses) -> AsyncIterator[ClusterProcesses]:
    async with shared_processes.connected():
        yield shared_processes


def partitions_of(job_ids: list[str]) -> set[int]:
    return {PARTITIONS.number(job_id) for job_id in job_ids}


async def watched(processes: ClusterProcesses, job_id: str) -> list[str | None]:
    return await RawStream.event_types(processes.gateway.port, job_id)


async def test_jobs_of_every_partition(processes: ClusterProcesses) -> None:
    """Jobs are accepted, watched and listed; totals include all partitions."""
    jobs = await asyncio.gather(*(processes.post(ms=5) for _ in range(40)))
    assert len(partitions_of(jobs)) == PARTITIONS.count
    for kinds in await asyncio.gather(*(watched(processes, job_id) for job_id in jobs)):
        assert kinds[0] == "hello"
        assert kinds[-1] == "done"
        assert kinds.count("done") == 1
    await processes.check_history(jobs)
    listed: list[str] = []
    cursor = ""
    for _ in range(30):
        page = await processes.get(f"/v1/jobs?limit=15{cursor}")
        listed += (job["job_id"] for job in page["jobs"])
        cursor = f"&cursor={page['next']}"
        if page["next"] is None:
            break
    assert len(set(listed)) == len(listed)
    assert set(jobs) <= set(listed)
    workers = (await processes.get("/v1/workers"))["workers"]
    assert {worker["consumer"] for worker in workers} == {"one", "two"}
    assert (await processes.client.get("/readyz")).status_code == 200
    audit = await processes.client.post("/v1/audit")
    assert audit.status_code == 200, audit.text
    report = json.loads(audit.text.splitlines()[-1])
    assert report["type"] == "report", report
    assert report["violations_total"] == 0, audit.text


async def test_scheduled_jobs_wait_and_jobs_are_canceled(processes: ClusterProcesses) -> None:
    scheduled = [await processes.post(delay_s=5.0) for _ in range(8)]
    assert len(partitions_of(scheduled)) > 1
    assert await processes.status(scheduled[-1]) == "queued"
    running = [await processes.post(ms=60_000) for _ in range(4)]
    later = [await processes.post(delay_s=600.0) for _ in range(4)]

    async def all_run() -> bool:
        return {await processes.status(job_id) for job_id in running} == {"running"}

    await eventually(all_run, TIMEOUT_S)
    for job_id in (*running, *later):
        answer = await processes.client.post(f"/v1/jobs/{job_id}/cancel")
        assert answer.status_code in (200, 202), answer.text
    for job_id in (*running, *later):
        assert (await watched(processes, job_id))[-1] == "canceled"
        assert await processes.status(job_id) == "canceled"
    await processes.check_history(scheduled)


async def test_dead_letters_of_all_partitions_are_redriven(processes: ClusterProcesses) -> None:
    before = (await processes.get("/v1/dlq"))["total"]
    bad = {"mend": "mended"}
    jobs = [await processes.post(payload=bad, max_attempts=1) for _ in range(8)]
    assert len(partitions_of(jobs)) > 1
    for job_id in jobs:
        assert (await watched(processes, job_id))[-1] == "error"
    first = await processes.get("/v1/dlq?limit=5")
    assert first["total"] == before + 8
    rest = await processes.get(f"/v1/dlq?limit=5&before={first['next']}")
    dead_letters = [*first["items"], *rest["items"]]
    assert {dead_letter["job_id"] for dead_letter in dead_letters} == set(jobs)
    (processes.directory / "mended").touch()
    answer = await processes.client.post("/v1/dlq/redrive", json={"all": True, "rate_per_s": 100.0})
    assert answer.status_code == 200, answer.text
    redriven = [one["job_id"] for one in answer.json()["redriven"]]
    assert len(redriven) == 8
    await processes.check_history(redriven)


# -- changes under load ---------------------------------------------------------------------------


@pytest.fixture
def servers() -> Iterator[RedisCluster]:
    with cluster() as found:
        yield found


@pytest.fixture
async def own_processes(
    servers: RedisCluster, spawn: Callable[..., Process], tmp_path: Path
) -> AsyncIterator[ClusterProcesses]:
    made = ClusterProcesses(servers, spawn, tmp_path, WAIT_REPLICAS="1", WAIT_TIMEOUT_MS="500")
    async with made.connected():
        yield made
    made.close()


async def under_load(processes: ClusterProcesses, name: str, change: Callable[[], object]) -> float:
    """Applies a change under load; returns the seconds until every partition has accepted a job
    sent after it began.
    """
    load = Load(processes, name)
    async with load.running():
        await asyncio.sleep(LOAD_S)
        began = time.monotonic()
        await asyncio.to_thread(change)
        took = await load.recovered(began)
        await asyncio.sleep(LOAD_S)
    await processes.check_history(list(load.acknowledged.values()))
    return took


async def test_a_killed_master_loses_no_acknowledged_job(own_processes: ClusterProcesses) -> None:
    own_processes.worker("one")
    own_processes.worker("two")
    killed = own_processes.owner(1)

    def kill() -> None:
        killed.kill()
        own_processes.servers.wait_failover(killed, own_processes.slot(1))
        killed.restart()  # nothing is guaranteed until the new master has a replica

    took_s = await under_load(own_processes, "kill", kill)
    print(f"every partition accepts {took_s:.1f} s after the kill")
    own_processes.servers.wait_agreed()
    # The restarted node gets its slots back with a planned failover.
    await under_load(
        own_processes, "over", lambda: own_processes.servers.failover(own_processes.slot(1))
    )


async def test_moving_slots_loses_no_acknowledged_job(own_processes: ClusterProcesses) -> None:
    own_processes.worker("one")
    own_processes.worker("two")
    servers = own_processes.servers

    def reshard() -> None:
        added = servers.add_node()
        servers.add_node(replica_of=added)
        for number in range(PARTITIONS.count):
            servers.move_slot(own_processes.slot(number), added)
        assert all(own_processes.owner(number) is added for number in range(PARTITIONS.count))

    await under_load(own_processes, "there", reshard)

    def back() -> None:
        for number in range(PARTITIONS.count):
            servers.move_slot(own_processes.slot(number), servers.nodes[number % 3])

    await under_load(own_processes, "back", back)
