"""Metrics, status and history of real processes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sluice.common.contracts.stats import ONE_SECOND, StatsKeys
from tests.deploy.test_alerts import names_used
from tests.support.processes.base import Processes
from tests.support.processes.gateway import GatewayProcess, StartGateway
from tests.support.processes.jobs import wait_for
from tests.support.processes.worker import Process, handler_module, wait_until
from tests.support.servers import RealServer

pytestmark = [pytest.mark.process, pytest.mark.slow("starts a gateway and workers")]

HANDLERS = """
import asyncio
from sluice.worker.errors import JobError, TransientError

async def chat(context, payload):
    await context.emit("message", {})
    return payload

async def plan(context, payload):
    raise JobError("no")

async def code(context, payload):
    if context.attempt == 1:
        raise TransientError("busy")

async def tool(context, payload):
    await asyncio.sleep(600)

def register(registry):
    for function in (chat, plan, code, tool):
        registry.add(function.__name__, function)
"""
#: Only reported by machines with such sensors, or by workers with a model: see test_model.py.
SENSOR_METRICS = ("gw_temperature_", "gw_mem_", "gw_gpu_", "gw_power_mode", "gw_model_")
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


def value(series: Series, name: str, **labels: str) -> float:
    return series.get((name, frozenset(labels.items())), 0.0)


def test_metrics_of_a_run_add_up(
    start_processes: Callable[..., ObservedProcesses], server: RealServer
) -> None:
    processes = start_processes(ObservedProcesses, server.url)
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


# -- traces ------------------------------------------------------------------------------------


def test_both_export_their_last_spans_at_the_end(
    start_processes: Callable[..., ObservedProcesses], one_server: RealServer
) -> None:
    processes = start_processes(ObservedProcesses, one_server.url, OTEL_TRACES_EXPORTER="console")
    worker, gateway = processes.worker(), processes.gateway
    job_id = gateway.submit()
    wait_for(one_server.client, job_id)
    gateway.stop()
    worker.send_signal(signal.SIGTERM)
    assert (gateway.process.returncode, worker.wait()) == (0, 0)
    for log, span, service in (
        (gateway.log, "send jobs:stream", "sluice-gateway"),
        (worker.log, "process jobs:stream", "sluice-worker"),
    ):
        assert f'"name": "{span}"' in log
        assert f'"service.name": "{service}"' in log
        assert job_id in log


# -- history -----------------------------------------------------------------------------------

RING = StatsKeys("jobs:stream").ring(ONE_SECOND)


def samples(server: RealServer) -> list[tuple[int, dict[bytes, bytes]]]:
    found: Any = server.client.xrange(RING)
    return [(int(entry_id.split(b"-")[0]), fields) for entry_id, fields in found]


def wait_for_samples(server: RealServer) -> None:
    before = len(samples(server))
    wait_until(lambda: len(samples(server)) >= before + 2, 30)


def wait_until_counted(server: RealServer, jobs: int) -> None:
    wait_until(lambda: sum(int(each[b"done"] or 0) for _, each in samples(server)) == jobs, 30)


def test_the_history_survives_restarts_of_all_processes(
    aof: RealServer, start_gateway: StartGateway, spawn: Callable[..., Process]
) -> None:
    def start() -> tuple[GatewayProcess, Process]:
        worker = spawn("worker.echo_worker", redis_url=aof.url, heartbeat_s=1)
        return start_gateway(aof.url), worker

    gateway, worker = start()
    wait_for_samples(aof)
    for _ in range(20):
        gateway.submit()
    wait_until_counted(aof, 20)
    wait_until(lambda: any(fields[b"end_to_end"] for _, fields in samples(aof)), 30)
    gateway.stop()
    before = samples(aof)
    worker.send_signal(signal.SIGTERM)
    worker.wait()
    aof.restart()
    assert samples(aof) == before
    gateway, worker = start()
    wait_for_samples(aof)
    body = gateway.http.get("/v1/stats").json()
    assert sum(value or 0 for value in body["series"]["done"]) == 20
    assert body["series"]["ts"][0] == before[0][0]
    assert body["now"]["totals"]["done"] == 20
    times = [ts for ts, _ in samples(aof)]
    assert times == sorted(set(times))
    # Again, with all processes running.
    aof.restart()
    wait_for_samples(aof)
    for _ in range(5):
        gateway.submit()
    wait_until_counted(aof, 25)
