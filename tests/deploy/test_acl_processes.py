"""The real gateway and worker under their Redis users: everything works, nothing is denied."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.installer.layout import ADMIN, GATEWAY, WORKER
from tests.support.deploy.acl import InstalledRedis, wait_until
from tests.support.processes.gateway import PYTHON_M, ROOT, GatewayProcess
from tests.support.processes.worker import Process, spawner

pytestmark = pytest.mark.process
CHAT = {"task": "chat", "payload": {"text": "hello"}}
Spawn = Callable[..., Process]


@dataclass
class Caller:
    """HTTP client of a gateway."""

    port: int
    key: str = ""

    def send(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.key:
            named["Authorization"] = f"Bearer {self.key}"
        if body is not None:
            named["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), named)
            answer = connection.getresponse()
            raw = answer.read().decode()
        finally:
            connection.close()
        return answer.status, json.loads(raw) if raw[:1] in ("{", "[") and "\n{" not in raw else raw

    def job(self, **members: object) -> str:
        status, answer = self.send("POST", "/v1/jobs", {**CHAT, **members})
        assert status == 202, answer
        job_id: str = answer["job_id"]
        return job_id

    def status_of(self, job_id: str) -> str:
        _, answer = self.send("GET", f"/v1/jobs/{job_id}")
        status: str = answer["status"]
        return status


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    yield from spawner(tmp_path)


@pytest.fixture
def gateway(
    installed_redis: InstalledRedis, tmp_path: Path
) -> Iterator[Callable[..., GatewayProcess]]:
    started: list[GatewayProcess] = []

    def start(**settings: str) -> GatewayProcess:
        url = installed_redis.url(GATEWAY)
        log = tmp_path / f"gateway{len(started)}.log"
        settings = {**installed_redis.gateway_settings, **settings}
        process = GatewayProcess(PYTHON_M, log, REDIS_URL=url, PORT="0", **settings)
        started.append(process)
        return process.wait_until_listening()

    yield start
    for process in started:
        process.close()


@pytest.fixture(autouse=True)
def clean(installed_redis: InstalledRedis) -> Iterator[None]:
    """Empties Redis before the test; afterwards checks that nothing was denied."""
    installed_redis.admin.flushall()
    installed_redis.admin.acl_log_reset()
    yield
    assert installed_redis.refusals() == set()


def start_worker(spawn: Spawn, installed: InstalledRedis, **settings: object) -> Process:
    options = {
        "lease_ms": 900,
        "block_ms": 50,
        "audit_every_s": 0.5,
        "heartbeat_s": 0.5,
        **settings,
    }
    worker = spawn("worker.echo_worker", redis_url=installed.url(WORKER), **options)
    worker.wait_for_line("takes jobs")
    return worker


def test_a_job_of_every_kind(
    installed_redis: InstalledRedis, gateway: Callable[..., GatewayProcess], spawn: Spawn
) -> None:
    caller = Caller(gateway().port)
    worker = start_worker(spawn, installed_redis)
    status, ended = caller.send("POST", "/v1/jobs", CHAT, Prefer="wait=20")
    assert (status, ended["status"]) == (200, "done")
    options = {"timeout_s": 5, "max_attempts": 3, "backoff": {"initial_s": 0.1}, "ttl_s": 60}
    wished = caller.job(**options)
    later = caller.job(delay_s=0.3)
    first = caller.send("POST", "/v1/jobs", CHAT, Idempotency_Key="k")
    again = caller.send("POST", "/v1/jobs", CHAT, Idempotency_Key="k")
    assert first[1] == again[1]
    for job_id in (wished, later):
        wait_until(lambda job_id=job_id: caller.status_of(job_id) == "done")  # type: ignore[misc]
    status, stream = caller.send("GET", f"/v1/jobs/{later}/events")
    assert "event: scheduled" in stream
    assert "event: done" in stream
    # The worker runs the integrity check, and the gateway reports the result.
    wait_until(lambda: caller.send("GET", "/v1/audit")[1]["last"]["jobs_checked"] >= 4)
    assert caller.send("GET", "/v1/audit")[1]["last"]["violations_total"] == 0
    # The worker trims acknowledged messages.
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.slow("starts a gateway and a worker")
def test_cancel_and_dead_letters(
    installed_redis: InstalledRedis, gateway: Callable[..., GatewayProcess], spawn: Spawn
) -> None:
    caller = Caller(gateway().port)
    waiting, scheduled = caller.job(), caller.job(delay_s=60)
    for job_id in (waiting, scheduled):
        assert caller.send("POST", f"/v1/jobs/{job_id}/cancel")[0] in (200, 202)
        assert caller.status_of(job_id) == "canceled"
    start_worker(spawn, installed_redis, echo_delay_ms=60_000)
    running = caller.job()
    wait_until(lambda: caller.status_of(running) == "running")
    caller.send("POST", f"/v1/jobs/{running}/cancel")
    wait_until(lambda: caller.status_of(running) == "canceled")

    for _ in range(3):
        message: Any = {"job_id": str(uuid.uuid4()), "task": "chat", "payload": '{"text":"x"}'}
        installed_redis.admin.xadd("jobs:stream", message)
    wait_until(lambda: caller.send("GET", "/v1/dlq")[1]["total"] == 3)
    newest, second, oldest = caller.send("GET", "/v1/dlq")[1]["items"]
    assert caller.send("GET", f"/v1/dlq/{newest['id']}")[0] == 200
    assert caller.send("POST", f"/v1/dlq/{newest['id']}/redrive")[0] == 202
    chosen = {"ids": [second["id"]]}
    assert len(caller.send("POST", "/v1/dlq/redrive", chosen)[1]["redriven"]) == 1
    assert caller.send("DELETE", f"/v1/dlq/{oldest['id']}")[0] == 204
    assert caller.send("DELETE", "/v1/dlq?all=true")[0] == 200


@pytest.mark.slow("starts a gateway and a worker")
def test_operator_endpoints(
    installed_redis: InstalledRedis, gateway: Callable[..., GatewayProcess], spawn: Spawn
) -> None:
    caller = Caller(gateway(BACKPRESSURE_MAX_BACKLOG="5").port)
    for path in ("/healthz", "/readyz", "/v1/status", "/metrics", "/v1/audit", "/openapi.json"):
        assert caller.send("GET", path)[0] == 200, path
    worker = start_worker(spawn, installed_redis)
    wait_until(lambda: installed_redis.admin.exists("jobs:stream:workers"))
    caller.send("POST", "/v1/jobs", CHAT, Prefer="wait=20")
    for path in ("/v1/status", "/metrics", "/v1/stats?range=14d", "/v1/queues", "/v1/workers"):
        assert caller.send("GET", path)[0] == 200, path
    wait_until(lambda: installed_redis.admin.exists("jobs:stream:stats:10s"), 30)
    assert caller.send("POST", "/v1/queues/jobs:stream/pause")[0] == 200
    worker.wait_for_line("the queue is paused")
    assert caller.send("POST", "/v1/queues/jobs:stream/resume")[0] == 200
    worker.wait_for_line("queue resumed")
    status, problem = caller.send("POST", "/v1/audit")
    assert (status, problem["code"]) == (503, "audit_not_permitted")
    installed_redis.admin.acl_log_reset()  # the last command was expected to be denied
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.slow("starts a gateway")
def test_backlog_where_redis_does_not_know_the_lag(
    installed_redis: InstalledRedis, gateway: Callable[..., GatewayProcess]
) -> None:
    """The gateway may not count queue entries, so it uses an upper bound."""
    admin = installed_redis.admin
    caller = Caller(gateway(BACKPRESSURE_MAX_BACKLOG="5").port)
    jobs = [caller.job() for _ in range(3)]
    assert len(jobs) == 3
    admin.execute_command("XGROUP", "CREATE", "jobs:stream", "workers", "0")
    admin.xreadgroup("workers", "me", {"jobs:stream": ">"}, count=1)
    _, second, _ = (entry_id for entry_id, _ in admin.xrange("jobs:stream"))
    admin.xdel("jobs:stream", second)
    if installed_redis.has_selectors:
        [group] = admin.xinfo_groups("jobs:stream")
        assert group["lag"] is None
    accepted = 0
    while caller.send("POST", "/v1/jobs", CHAT)[0] == 202:
        accepted += 1
    assert accepted == 3  # one runs and one waits: three more make five
    if installed_redis.has_selectors:  # the gateway did try
        assert installed_redis.refusals() == {(GATEWAY, "jobs:stream")}
        admin.acl_log_reset()


@pytest.mark.slow("starts a gateway and a worker")
def test_a_worker_that_dies_and_one_that_drains(
    installed_redis: InstalledRedis, gateway: Callable[..., GatewayProcess], spawn: Spawn
) -> None:
    caller = Caller(gateway().port)
    first = start_worker(spawn, installed_redis, echo_delay_ms=60_000, consumer="one")
    job_id = caller.job()
    wait_until(lambda: caller.status_of(job_id) == "running")
    first.kill()
    # Slow enough to observe the job while it runs, unless this process is stalled.
    settings = {"echo_delay_ms": 3000, "lease_ms": 5000, "consumer": "two"}
    second = start_worker(spawn, installed_redis, **settings)
    wait_until(lambda: caller.status_of(job_id) == "done", 60)
    last = caller.job()
    wait_until(lambda: caller.status_of(last) in ("running", "done"))
    second.send_signal(signal.SIGTERM)
    assert second.wait() == 0
    assert caller.status_of(last) == "done"


@pytest.mark.slow("starts a gateway and a worker")
def test_keys_with_limits(
    installed_redis: InstalledRedis, gateway: Callable[..., GatewayProcess], spawn: Spawn
) -> None:
    command = [sys.executable, "-m", "sluice", "key", "create", "--name", "test"]
    command += ["--rate", "100/s", "--max-jobs", "50"]
    environment = {**os.environ, "REDIS_URL": installed_redis.url(ADMIN), "PYTHONPATH": str(ROOT)}
    made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    match = re.search(r"sluice_\w+", made.stdout)
    assert match is not None, made.stdout
    running = gateway(AUTH="required")
    assert Caller(running.port).send("POST", "/v1/jobs", CHAT)[0] == 401
    start_worker(spawn, installed_redis)
    caller = Caller(running.port, match[0])
    status, ended = caller.send("POST", "/v1/jobs", CHAT, Prefer="wait=20")
    assert (status, ended["status"]) == (200, "done")
    running.stop()
