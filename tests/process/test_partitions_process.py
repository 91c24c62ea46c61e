"""Real workers with several partitions on one server, and on a Cluster whose master dies."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import redis

from common.contracts.jobs import JobKeys
from common.redis.partitions import Partitions
from tests.gateway.processes import PYTHON_M, GatewayProcess
from tests.support.backends import RealServer
from tests.topologies import cluster
from tests.worker.processes import Process, wait_until

pytestmark = pytest.mark.process
COUNT = 4
TIMEOUT_S = 60


def post(client: redis.Redis, partitions: Partitions, number: int) -> str:
    """Enqueues into one partition with the commands of the contract."""
    keys = partitions.keys[number]
    job_id = partitions.draw_id(number, lambda: str(uuid.uuid4()))
    now = str(int(time.time() * 1000))
    fields = {"job_id": job_id, "task": "chat", "payload": '{"text":"hello"}'}
    rest = {"created_ts": now, "updated_ts": now, "ttl_s": "600", "result": "", "error": ""}
    client.hset(keys.job(job_id), mapping={**fields, "status": "queued", **rest})
    client.xadd(keys.queue, fields)
    return job_id


def ended(client: redis.Redis, partitions: Partitions, jobs: list[str]) -> bool:
    """True if all jobs are done."""
    with client.pipeline(transaction=False) as pipe:
        for job_id in jobs:
            pipe.hget(partitions.keys_for_job(job_id).job(job_id), "status")
        return set(pipe.execute()) == {b"done"}


def wait_done(client: redis.Redis, partitions: Partitions, job_id: str) -> None:
    wait_until(lambda: ended(client, partitions, [job_id]), TIMEOUT_S)


def test_jobs_of_all_partitions_are_done_once(
    server: RealServer, spawn: Callable[..., Process], tmp_path: Any
) -> None:
    partitions = Partitions.create(JobKeys(), COUNT)
    settings = {"PORT": "0", "REDIS_URL": server.url, "QUEUE_PARTITIONS": str(COUNT)}
    settings["BACKPRESSURE_MAX_BACKLOG"] = "5000"
    gateway = GatewayProcess(PYTHON_M, tmp_path / "gateway.log", **settings)
    try:
        gateway.wait_until_listening()
        workers = [
            spawn(
                "worker.echo_worker", redis_url=server.url, queue_partitions=COUNT,
                consumer=name, heartbeat_s=0.2,
            )
            for name in ("one", "two")
        ]  # fmt: skip
        for worker in workers:
            worker.wait_for_line(f"{{0}}:jobs:stream and {COUNT - 1} more", TIMEOUT_S)
        jobs = [_create(gateway.port) for _ in range(200)]
        assert len({partitions.number(job_id) for job_id in jobs}) == COUNT
        wait_until(lambda: ended(server.client, partitions, jobs), TIMEOUT_S)
        home = partitions.home
        wait_until(lambda: server.client.zcard(home.workers) == 2)
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        for worker in workers:
            assert worker.wait() == 0
            assert "Traceback" not in worker.log
    finally:
        gateway.close()
    for job_id in jobs:
        events = server.client.xrange(partitions.keys_for_job(job_id).events(job_id))
        types = [fields[b"type"] for _, fields in events]
        assert types == [b"queued", b"running", b"message", b"done"]
    assert server.client.zcard(home.workers) == 0
    for keys in partitions.keys:
        assert server.client.xpending(keys.queue, "workers")["pending"] == 0


def _create(port: int) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/jobs",
        json.dumps({"task": "chat", "payload": {"messages": []}}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return str(json.load(answer)["job_id"])


@pytest.mark.topology
def test_a_dead_master_delays_only_its_partitions(
    spawn: Callable[..., Process],
) -> None:
    partitions = Partitions.create(JobKeys(), 6)
    with cluster() as servers:
        slots = [servers.slot_of(keys.queue) for keys in partitions.keys]
        owners = [servers.owner(slot) for slot in slots]
        dying = next(owner for owner in owners if owner is not owners[0])
        kept = [number for number, owner in enumerate(owners) if owner is not dying]
        lost = [number for number, owner in enumerate(owners) if owner is dying]
        worker = spawn(
            "worker.echo_worker", redis_url=servers.url, queue_partitions=6, lease_ms=3000
        )
        worker.wait_for_line("takes jobs", TIMEOUT_S)
        jobs = [
            (number, post(owners[number].client, partitions, number))
            for number in range(6)
            for _ in range(20)
        ]
        for number, job_id in jobs:
            wait_done(owners[number].client, partitions, job_id)
        dying.kill()
        for _ in range(5):
            more = [(number, post(owners[number].client, partitions, number)) for number in kept]
            for number, job_id in more:
                wait_done(owners[number].client, partitions, job_id)
        for number in lost:
            taker = servers.wait_failover(dying, slots[number])
            job_id = post(taker.client, partitions, number)
            wait_done(taker.client, partitions, job_id)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(TIMEOUT_S) == 0
        assert "Traceback" not in worker.log
