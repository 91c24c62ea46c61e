"""Metrics of real gateway and worker processes: values add up, and names match alerts and
dashboard.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.deploy.test_alerts import names_used
from tests.gateway.processes import PYTHON_M, GatewayProcess
from tests.process.test_worker_process import handlers
from tests.support.backends import RealServer
from tests.worker.processes import Process, wait_until

pytestmark = pytest.mark.process

HANDLERS = """
import asyncio
from worker.errors import JobError, TransientError

async def chat(context, payload):
    await context.emit("message", {})
    return payload

async def plan(context, payload):
    raise JobError("no")

async def code(context, payload):
    if context.attempt == 1:
        raise TransientError("once more")

async def tool(context, payload):
    await asyncio.sleep(600)

def register(registry):
    for function in (chat, plan, code, tool):
        registry.add(function.__name__, function)
"""
#: Only reported by machines with such sensors, or by workers with a model: see test_model_process.
SENSOR_METRICS = ("gw_temperature_", "gw_mem_", "gw_gpu_", "gw_power_mode", "gw_model_")
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def gateway(server: RealServer, tmp_path: Path) -> Iterator[GatewayProcess]:
    settings = {"PORT": "0", "REDIS_URL": server.url}
    process = GatewayProcess(PYTHON_M, tmp_path / "gateway.log", **settings)
    yield process.wait_until_listening()
    process.close()


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{gateway.port}", timeout=20) as opened:
        yield opened


@pytest.fixture
def start(
    server: RealServer, spawn: Callable[..., Process], tmp_path: Path
) -> Callable[..., Process]:
    environment = {
        **handlers(tmp_path, HANDLERS),
        "redis_url": server.url,
        "heartbeat_s": 0.2,
        "block_ms": 50,
        "retry_backoff_s": 0.01,
        "audit_every_s": 0.5,
    }

    def factory(consumer: str, **settings: object) -> Process:
        return spawn("worker", consumer=consumer, **{**environment, **settings})

    return factory


def scrape(client: httpx.Client) -> Series:
    answer = client.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert answer.status_code == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float:
    return series.get((name, frozenset(labels.items())), 0.0)


def post(client: httpx.Client, task: str, **more: Any) -> str:
    answer = client.post("/v1/jobs", json={"task": task, "payload": {}, **more})
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["job_id"]
    return job_id


def test_a_run_adds_up(
    client: httpx.Client, start: Callable[..., Process], server: RealServer
) -> None:
    start("w1")
    for _ in range(5):
        post(client, "chat")
    post(client, "plan")
    post(client, "code")
    stopped = post(client, "tool")
    wait_until(lambda: client.get(f"/v1/jobs/{stopped}").json()["status"] == "running")
    client.delete(f"/v1/jobs/{stopped}")

    def ended() -> Series | None:
        now = scrape(client)
        jobs = sum(
            value(now, f"gw_jobs_{how}_total", task=task, worker="w1")
            for how in ("succeeded", "failed", "canceled")
            for task in ("chat", "plan", "code", "tool")
        )
        audited = value(now, "gw_audit_last_timestamp_seconds")
        return now if jobs == 8 and audited else None

    now = wait_until(ended)
    assert value(now, "gw_jobs_succeeded_total", task="chat", worker="w1") == 5
    assert value(now, "gw_jobs_failed_total", task="plan", worker="w1") == 1
    assert value(now, "gw_jobs_retried_total", task="code", worker="w1") == 1
    assert value(now, "gw_jobs_started_total", task="code", worker="w1") == 2
    assert value(now, "gw_jobs_canceled_total", task="tool", worker="w1") == 1
    assert value(now, "gw_job_e2e_seconds_count", task="chat", worker="w1") == 5
    assert value(now, "gw_events_emitted_total", worker="w1") >= 5
    assert value(now, "gw_jobs_submitted_total", task="chat") == 5
    assert value(now, "gw_jobs_finished_total") == 8
    assert value(now, "gw_jobs_lost_total") == 0
    assert value(now, "gw_queue_depth") == value(now, "gw_queue_pending") == 0
    assert value(now, "gw_worker_slots", worker="w1") == 16

    reported = {name for name, _ in now} | {"up"}
    missing = {name for name in names_used() - reported if not name.startswith(SENSOR_METRICS)}
    assert missing == set()


def test_status_and_workers(client: httpx.Client, start: Callable[..., Process]) -> None:
    worker = start("w1")
    job_id = post(client, "tool")

    def busy() -> dict[str, Any] | None:
        listed = client.get("/v1/workers").json()["workers"]
        return listed[0] if listed and listed[0]["running"] else None

    listed = wait_until(busy)
    assert (listed["consumer"], listed["pid"]) == ("w1", worker.pid)
    assert listed["running"][0]["job_id"] == job_id
    assert listed["rss_bytes"] > 1 << 20
    status = client.get("/v1/status").json()
    assert status["checks"]["workers"][0]["number"] == 1
    assert status["checks"]["redis"][0]["redis_version"]


def test_stopped_and_dead_workers_disappear(
    client: httpx.Client, start: Callable[..., Process], server: RealServer
) -> None:
    stopping, dying = start("stopping"), start("dying")

    def names() -> set[str]:
        return {dict(labels)["worker"] for name, labels in scrape(client) if name == "gw_worker_up"}

    wait_until(lambda: names() == {"stopping", "dying"})
    stopping.send_signal(signal.SIGTERM)
    assert stopping.wait() == 0
    assert names() == {"dying"}
    dying.send_signal(signal.SIGKILL)
    wait_until(lambda: names() == set(), 20)


def test_a_draining_worker_sends_heartbeats(
    client: httpx.Client, start: Callable[..., Process]
) -> None:
    worker = start("w1", shutdown_grace_s=60)
    post(client, "tool")
    wait_until(lambda: value(scrape(client), "gw_worker_busy", worker="w1") == 1)
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: value(scrape(client), "gw_worker_draining", worker="w1") == 1)
    worker.send_signal(signal.SIGTERM)
    worker.wait(30)


def test_a_frozen_redis_does_not_block_the_scrape(client: httpx.Client, server: RealServer) -> None:
    assert value(scrape(client), "gw_up") == 1
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        found = scrape(client)
        assert time.monotonic() - started < 15.0, "two seconds, on a machine that is not busy"
        assert value(found, "gw_up") == 0
        assert value(found, "gw_process_open_fds") > 0
        assert client.get("/v1/status").status_code == 503
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    wait_until(lambda: value(scrape(client), "gw_up") == 1)
