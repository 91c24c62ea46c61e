"""Lanes, partitions and rolling deploys with real processes on one server."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from sluice.common.contracts.jobs import SCHEMA_VERSION, JobKeys
from sluice.common.errors import EXIT_CONFIG
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.redis.partitions import Partitions
from tests.support.processes.gateway import StartGateway
from tests.support.processes.jobs import KEYS, pending, post, status, times, types
from tests.support.processes.worker import ROOT, Process, wait_until
from tests.support.servers import RealServer

pytestmark = pytest.mark.process
Spawn = Callable[..., Process]
PARTITIONS = Partitions.create(KEYS, 4)
LARGE_BACKLOG = {"BACKPRESSURE_MAX_BACKLOG": "5000"}


def all_done(client: redis.Redis, partitions: Partitions, jobs: list[str]) -> bool:
    with client.pipeline(transaction=False) as pipe:
        for job_id in jobs:
            status(pipe, job_id, partitions.keys_for_job(job_id))
        return set(pipe.execute()) == {b"done"}


def check_history(client: redis.Redis, partitions: Partitions, jobs: list[str]) -> None:
    for job_id in jobs:
        found = types(client, job_id, partitions.keys_for_job(job_id))
        assert found == [b"queued", b"running", b"message", b"done"], job_id
    for keys in partitions.keys:
        assert pending(client, keys) == 0


# -- lanes -------------------------------------------------------------------------------------


def held_by(client: redis.Redis, consumer: str, lane: str) -> list[str]:
    """Jobs whose messages are pending for a worker."""
    stream = KEYS.for_lane(lane).stream
    taken = client.xpending_range(stream, "workers", "-", "+", 100, consumername=consumer)
    ids = [each["message_id"] for each in taken]
    return [client.xrange(stream, at, at)[0][1][b"job_id"].decode() for at in ids]


@pytest.mark.slow("works through a long backlog")
def test_urgent_jobs_overtake_and_survive_a_killed_worker(
    server: RealServer, spawn: Spawn, start_gateway: StartGateway
) -> None:
    client = server.client
    gateway = start_gateway(server.url, LANES="high,low", **LARGE_BACKLOG)
    backlog = [gateway.submit(lane="low") for _ in range(120)]
    backlog += [gateway.submit() for _ in range(120)]

    def worker(name: str, delay_ms: int) -> Process:
        return spawn(
            "worker.echo_worker", redis_url=server.url, lanes="high,low", max_inflight=2,
            consumer=name, echo_delay_ms=delay_ms, lease_ms=1500, block_ms=100,
        )  # fmt: skip

    def running() -> list[str]:
        return [job_id for job_id in backlog if status(client, job_id) == b"running"]

    killed = worker("killed", 60_000)
    wait_until(lambda: len(running()) == 2)
    urgent = [gateway.submit(lane="high") for _ in range(10)]
    canceled = running()[0]
    backlog.remove(canceled)
    assert gateway.http.post(f"/v1/jobs/{canceled}/cancel").status_code == 202
    killed.kill()
    # In place of the canceled one, until the lease expires.
    held = held_by(client, "killed", "high")
    assert len(held) <= 2
    living = worker("living", 20)
    wait_until(lambda: all_done(client, Partitions.create(KEYS, 1), urgent + backlog))
    last_ms = max(times(client, job_id, b"done")[0] for job_id in urgent if job_id not in held)
    assert sum(times(client, job_id, b"done")[0] < last_ms for job_id in backlog) < 120
    living.send_signal(signal.SIGTERM)
    assert living.wait() == 0
    assert "Traceback" not in living.log
    for lane in ("normal", "high", "low"):
        assert client.xpending(KEYS.for_lane(lane).stream, "workers")["pending"] == 0
    refused = gateway.http.post("/v1/jobs", json={"task": "chat", "payload": {}, "lane": "urgent"})
    assert refused.status_code == 422


# -- partitions --------------------------------------------------------------------------------


def test_jobs_of_all_partitions_are_done_once(
    server: RealServer, spawn: Spawn, start_gateway: StartGateway
) -> None:
    client, settings = server.client, {"QUEUE_PARTITIONS": str(PARTITIONS.count)}
    gateway = start_gateway(server.url, **settings, **LARGE_BACKLOG)
    worker = spawn("worker.echo_worker", redis_url=server.url, heartbeat_s=0.2, **settings)
    worker.wait_for_line(f"{{0}}:jobs:stream and {PARTITIONS.count - 1} more")
    jobs = [gateway.submit() for _ in range(80)]
    assert {PARTITIONS.number(job_id) for job_id in jobs} == set(range(PARTITIONS.count))
    wait_until(lambda: all_done(client, PARTITIONS, jobs))
    wait_until(lambda: client.zcard(PARTITIONS.home.workers) == 1)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "Traceback" not in worker.log
    check_history(client, PARTITIONS, jobs)
    assert client.zcard(PARTITIONS.home.workers) == 0


# -- rolling deploys ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same worker with a modified script, which has another digest."""
    path = tmp_path_factory.mktemp("version")
    for package in ("sluice", "common", "worker"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, path / package, symlinks=True, ignore=ignored)
    changed = path / "common" / "jobs" / "lua" / "attempt" / "begin.lua"
    changed.write_text(f"-- Another version.\n{changed.read_text()}")
    return path


def digest(path: Path) -> str:
    code = "from sluice.common.jobs.scripts import CORE_SCRIPT; print(CORE_SCRIPT.sha)"
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=path, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.slow("replaces workers under load")
@pytest.mark.parametrize("count", [1, 4], ids=["whole", "partitions"])
def test_two_versions_lose_and_duplicate_nothing(
    server: RealServer, spawn: Spawn, other_version: Path, count: int
) -> None:
    client, partitions = server.client, Partitions.create(JobKeys(), count)
    client.script_flush()
    names = itertools.count()

    def start(path: Path | None) -> Process:
        worker = spawn(
            "worker.echo_worker", redis_url=server.url, queue_partitions=count, echo_delay_ms=5,
            consumer=f"w{next(names)}", block_ms=100,
            **({} if path is None else {"pythonpath": path}),
        )  # fmt: skip
        worker.wait_for_line("takes jobs")
        return worker

    jobs: list[str] = []

    def load(number: int) -> None:
        for at in range(number):
            job_id = partitions.draw_id(at % count, lambda: str(uuid.uuid4()))
            jobs.append(post(client, keys=partitions.keys[at % count], job_id=job_id))

    workers = [start(None), start(other_version)]
    load(100)
    for replacement in (other_version, None, None, other_version):
        load(60)
        leaving = workers.pop(0)
        leaving.send_signal(signal.SIGTERM)
        load(60)
        workers.append(start(replacement))
        assert leaving.wait() == 0
        assert "Traceback" not in leaving.log
    wait_until(lambda: all_done(client, partitions, jobs))
    versions = CORE_SCRIPT.sha, digest(other_version)
    assert len(set(versions)) == 2
    assert client.script_exists(*versions) == [True, True]
    check_history(client, partitions, jobs)


@pytest.mark.parametrize(
    "module",
    ["worker.echo_worker", pytest.param("gateway", marks=pytest.mark.slow("starts a gateway"))],
)
def test_a_process_with_an_old_schema_does_not_start(
    server: RealServer, spawn: Spawn, module: str
) -> None:
    newer = {"version": SCHEMA_VERSION + 1, "partitions": 1}
    server.client.set(KEYS.schema, json.dumps(newer))
    refused = spawn(module, redis_url=server.url, port=0)
    assert refused.wait() == EXIT_CONFIG
    assert f"use schema version {SCHEMA_VERSION + 1}" in refused.log
    assert "Traceback" not in refused.log
