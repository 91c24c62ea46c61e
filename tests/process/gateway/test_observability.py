"""Metrics, status, logs and traces of real processes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.deploy.test_alerts import names_used
from tests.support.processes.base import Processes
from tests.support.processes.gateway import GatewayProcess
from tests.support.processes.jobs import wait_for
from tests.support.processes.worker import Process, handler_module, wait_until
from tests.support.servers import BUNDLED, RealServer, require_binary

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
        raise TransientError("busy; use sluice_ab12cd34_0123456789abcdef0123456789")

async def tool(context, payload):
    await asyncio.sleep(600)

def register(registry):
    for function in (chat, plan, code, tool):
        registry.add(function.__name__, function)
"""
#: Only reported by machines with such sensors, or by workers with a model: see test_model.py.
SENSOR_METRICS = ("gw_temperature_", "gw_mem_", "gw_gpu_", "gw_power_mode", "gw_model_")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
SLOW = pytest.mark.slow("starts a gateway and workers")
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class ObservedProcesses(Processes):
    """A gateway and workers with short intervals."""

    WORKER: ClassVar[dict[str, object]] = {
        "heartbeat_s": 0.2, "retry_backoff_s": 0.01, "audit_every_s": 0.5, "lease_ms": 30_000,
    }  # fmt: skip

    def start_worker(
        self, name: str = "one", module: str = "worker", **settings: object
    ) -> Process:
        return super().start_worker(
            name, module, **{**handler_module(self.directory, HANDLERS), **settings}
        )

    def scrape(self) -> Series:
        headers = {"Accept": "application/openmetrics-text"}
        answer = self.gateway.http.get("/metrics", headers=headers)
        assert answer.status_code == 200
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    def metric(self, name: str, **labels: str) -> float:
        return value(self.scrape(), name, **labels)

    def stop(self, worker: Process) -> None:
        self.gateway.stop()
        worker.send_signal(signal.SIGTERM)
        assert (self.gateway.process.returncode, worker.wait()) == (0, 0)


Start = Callable[..., ObservedProcesses]


def value(series: Series, name: str, **labels: str) -> float:
    return series.get((name, frozenset(labels.items())), 0.0)


@pytest.fixture
def start(start_processes: Callable[..., ObservedProcesses]) -> Start:
    return lambda server, **more: start_processes(ObservedProcesses, server.url, **more)


# -- metrics and status ------------------------------------------------------------------------


@SLOW
def test_metrics_of_a_run_add_up(start: Start, server: RealServer) -> None:
    processes = start(server)
    worker = processes.worker("w1", max_inflight=16)
    gateway = processes.gateway
    for _ in range(5):
        gateway.submit("chat")
    gateway.submit("plan")
    gateway.submit("code")
    stopped = gateway.submit("tool")
    wait_for(server.client, stopped, b"running")
    busy = wait_until(lambda: gateway.http.get("/v1/workers").json()["workers"][0]["running"])
    assert [each["job_id"] for each in busy] == [stopped]
    [listed] = gateway.http.get("/v1/workers").json()["workers"]
    assert (listed["consumer"], listed["pid"]) == ("w1", worker.pid)
    assert listed["rss_bytes"] > 1 << 20
    status = gateway.http.get("/v1/status").json()
    assert status["checks"]["workers"][0]["number"] == 1
    assert status["checks"]["redis"][0]["redis_version"]
    gateway.http.delete(f"/v1/jobs/{stopped}")

    def ended() -> Series | None:
        now = processes.scrape()
        jobs = sum(
            value(now, f"gw_jobs_{how}_total", task=task, worker="w1")
            for how in ("succeeded", "failed", "canceled")
            for task in ("chat", "plan", "code", "tool")
        )
        return now if jobs == 8 and value(now, "gw_audit_last_timestamp_seconds") else None

    now = wait_until(ended)
    expected = {
        ("gw_jobs_succeeded_total", "chat"): 5,
        ("gw_jobs_failed_total", "plan"): 1,
        ("gw_jobs_retried_total", "code"): 1,
        ("gw_jobs_started_total", "code"): 2,
        ("gw_jobs_canceled_total", "tool"): 1,
        ("gw_job_e2e_seconds_count", "chat"): 5,
    }
    found = {(name, task): value(now, name, task=task, worker="w1") for name, task in expected}
    assert found == expected
    assert value(now, "gw_events_emitted_total", worker="w1") >= 5
    assert value(now, "gw_jobs_submitted_total", task="chat") == 5
    assert value(now, "gw_jobs_finished_total") == 8
    assert value(now, "gw_jobs_lost_total") == 0
    assert value(now, "gw_queue_depth") == value(now, "gw_queue_pending") == 0
    assert value(now, "gw_worker_slots", worker="w1") == 16
    # Names match alerts and dashboard.
    reported = {name for name, _ in now} | {"up"}
    missing = {name for name in names_used() - reported if not name.startswith(SENSOR_METRICS)}
    assert missing == set()


@SLOW
def test_a_frozen_redis_does_not_block_the_scrape(start: Start) -> None:
    server = RealServer(require_binary(BUNDLED))
    try:
        processes = start(server)
        assert processes.metric("gw_up") == 1
        os.kill(server.process.pid, signal.SIGSTOP)
        started = time.monotonic()
        found = processes.scrape()
        assert time.monotonic() - started < 15.0, "two seconds, on a machine that is not busy"
        assert value(found, "gw_up") == 0
        assert value(found, "gw_process_open_fds") > 0
        assert processes.gateway.http.get("/v1/status").status_code == 503
        os.kill(server.process.pid, signal.SIGCONT)
        wait_until(lambda: processes.metric("gw_up") == 1)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
        server.close()


# -- logs and traces ---------------------------------------------------------------------------


def run_job(gateway: GatewayProcess, server: RealServer, task: str = "chat") -> str:
    """Posts a job with a trace context and waits for its end."""
    gateway.http.headers["traceparent"] = PARENT
    job_id = gateway.submit(task)
    wait_for(server.client, job_id)
    return job_id


def lines_of(log: str, job_id: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("job_id") == job_id]


@SLOW
def test_both_export_their_last_spans_at_the_end(start: Start, one_server: RealServer) -> None:
    processes = start(one_server, OTEL_TRACES_EXPORTER="console")
    worker = processes.worker()
    job_id = run_job(processes.gateway, one_server)
    processes.stop(worker)
    for log, span, service in (
        (processes.gateway.log, "send jobs:stream", "sluice-gateway"),
        (worker.log, "process jobs:stream", "sluice-worker"),
    ):
        assert f'"name": "{span}"' in log
        assert f'"trace_id": "0x{TRACE}"' in log
        assert f'"service.name": "{service}"' in log
        assert job_id in log


@SLOW
def test_log_lines_have_the_job_and_the_trace(start: Start, one_server: RealServer) -> None:
    """The gateway logs a successful request; the worker logs failures only, without secrets."""
    processes = start(one_server, LOG_FORMAT="json")
    worker = processes.worker()
    done = run_job(processes.gateway, one_server)
    retried = run_job(processes.gateway, one_server, "code")
    processes.stop(worker)
    [line] = lines_of(processes.gateway.log, done)
    assert line["message"].startswith("POST /v1/jobs 202 ")
    assert (line["level"], line["trace_id"]) == ("info", TRACE)
    assert lines_of(worker.log, done) == []
    [line] = lines_of(worker.log, retried)
    assert line["message"].startswith("attempt 1 failed; the next one in 0.0 s: ")
    assert (line["task"], line["attempt"], line["trace_id"]) == ("code", "1", TRACE)
    assert "busy; use sluice_ab12cd34_***" in line["message"]
    assert "0123456789abcdef" not in worker.log
