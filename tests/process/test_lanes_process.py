"""Lanes in real processes: urgent jobs overtake a backlog, and a killed worker loses none."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.contracts.jobs import JobKeys
from tests.gateway.processes import PYTHON_M, GatewayProcess
from tests.support.backends import RealServer
from tests.worker.processes import Process, wait_until

pytestmark = pytest.mark.process
TIMEOUT_S = 60
KEYS = JobKeys()


def create(port: int, lane: str | None = None) -> str:
    body = {"task": "chat", "payload": {}, **({"lane": lane} if lane else {})}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/jobs",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return str(json.load(answer)["job_id"])


def cancel(port: int, job_id: str) -> int:
    url = f"http://127.0.0.1:{port}/v1/jobs/{job_id}/cancel"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60) as answer:
        return int(answer.status)


def statuses(client: Any, jobs: list[str]) -> list[bytes]:
    with client.pipeline(transaction=False) as pipe:
        for job_id in jobs:
            pipe.hget(KEYS.job(job_id), "status")
        return list(pipe.execute())


def held_by(client: Any, consumer: str, lane: str) -> list[str]:
    """Jobs whose messages are pending for a worker."""
    stream = KEYS.for_lane(lane).stream
    taken = client.xpending_range(stream, "workers", "-", "+", 100, consumername=consumer)
    ids = [each["message_id"] for each in taken]
    return [client.xrange(stream, at, at)[0][1][b"job_id"].decode() for at in ids]


def done_at_ms(client: Any, job_id: str) -> int:
    """Time of Redis."""
    [ts] = [
        int(fields[b"ts"])
        for _, fields in client.xrange(KEYS.events(job_id))
        if fields[b"type"] == b"done"
    ]
    return ts


def test_urgent_jobs_overtake_and_survive_a_killed_worker(
    server: RealServer, spawn: Callable[..., Process], tmp_path: Path
) -> None:
    client = server.client
    settings = {"PORT": "0", "REDIS_URL": server.url, "LANES": "high,low"}
    settings["BACKPRESSURE_MAX_BACKLOG"] = "5000"
    gateway = GatewayProcess(PYTHON_M, tmp_path / "gateway.log", **settings)
    try:
        gateway.wait_until_listening()
        backlog = [create(gateway.port, "low") for _ in range(120)]
        backlog += [create(gateway.port) for _ in range(120)]

        def worker(name: str, delay_ms: int) -> Process:
            return spawn(
                "worker.echo_worker", redis_url=server.url, lanes="high,low", max_inflight=2,
                consumer=name, echo_delay_ms=delay_ms, lease_ms=1500, block_ms=100,
            )  # fmt: skip

        dying = worker("dying", 60_000)
        wait_until(lambda: statuses(client, backlog).count(b"running") == 2, TIMEOUT_S)
        urgent = [create(gateway.port, "high") for _ in range(10)]
        at_work = statuses(client, backlog).index(b"running")
        assert cancel(gateway.port, backlog.pop(at_work)) == 202
        dying.kill()
        # in place of the canceled one, until the lease expires
        held = held_by(client, "dying", "high")
        assert len(held) <= 2
        living = worker("living", 20)
        wait_until(lambda: set(statuses(client, urgent + backlog)) == {b"done"}, TIMEOUT_S)
        last_ms = max(done_at_ms(client, job_id) for job_id in urgent if job_id not in held)
        assert sum(done_at_ms(client, job_id) < last_ms for job_id in backlog) < 120
        living.send_signal(signal.SIGTERM)
        assert living.wait(TIMEOUT_S) == 0
        assert "Traceback" not in living.log
        for lane in ("normal", "high", "low"):
            stream = KEYS.for_lane(lane).stream
            assert client.xpending(stream, "workers")["pending"] == 0
        with pytest.raises(urllib.error.HTTPError) as refused:
            create(gateway.port, "urgent")
        assert refused.value.code == 422
    finally:
        gateway.close()
