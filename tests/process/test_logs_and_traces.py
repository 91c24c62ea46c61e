"""Logs and traces of real processes: one trace across both, and log lines with the job id."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.processes import PYTHON_M, GatewayProcess
from tests.support.backends import REAL, RealServer
from tests.worker.processes import wait_until

pytestmark = pytest.mark.process
WORKER = (sys.executable, "-m", "worker")
#: Echoes every task, whatever its payload.
ECHO = "worker.handlers.echo"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
FAILING = """
from common.contracts.jobs import Task
from worker.errors import TransientError

def register(registry):
    registry.add(Task.PLAN.value, handle)

async def handle(context, payload):
    if context.attempt == 1:
        raise TransientError("busy; use sluice_ab12cd34_0123456789abcdef0123456789")
"""


class GatewayAndWorker:
    """A gateway and a worker with the same environment."""

    def __init__(self, server: RealServer, folder: Path, **environment: str) -> None:
        self.server = server
        shared = {
            "REDIS_URL": server.url, "BLOCK_MS": "100", "PORT": "0", "WORKER_HANDLERS": ECHO,
            **environment,
        }  # fmt: skip
        self.gateway = GatewayProcess(PYTHON_M, folder / "gateway.log", **shared)
        self.worker = GatewayProcess(WORKER, folder / "worker.log", **shared)
        self.gateway.wait_until_listening()

    def run_job(self, task: str = "chat") -> str:
        """Posts a job and waits for its end."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.gateway.port}/v1/jobs",
            json.dumps({"task": task, "payload": {}}).encode(),
            {"content-type": "application/json", "traceparent": PARENT},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            job_id: str = json.load(answer)["job_id"]
        client = self.server.client
        wait_until(lambda: client.hget(f"job:{job_id}", "status") == b"done")
        return job_id

    def stop(self) -> None:
        self.gateway.stop()
        self.worker.stop()
        assert (self.gateway.process.returncode, self.worker.process.returncode) == (0, 0)

    def close(self) -> None:
        self.gateway.close()
        self.worker.close()


@pytest.fixture
def start_processes(
    real_server: Callable[[str], RealServer], tmp_path: Path
) -> Iterator[Callable[..., GatewayAndWorker]]:
    processes: list[GatewayAndWorker] = []

    def make(**environment: str) -> GatewayAndWorker:
        server = real_server(REAL[0])
        server.client.flushall()
        processes.append(GatewayAndWorker(server, tmp_path, **environment))
        return processes[-1]

    yield make
    for start_processes in processes:
        start_processes.close()


def json_lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def test_both_export_their_last_spans_at_the_end(
    start_processes: Callable[..., GatewayAndWorker],
) -> None:
    processes = start_processes(OTEL_TRACES_EXPORTER="console")
    job_id = processes.run_job()
    processes.stop()
    for process, span, service in (
        (processes.gateway, "send jobs:stream", "sluice-gateway"),
        (processes.worker, "process jobs:stream", "sluice-worker"),
    ):
        assert f'"name": "{span}"' in process.log
        assert f'"trace_id": "0x{TRACE}"' in process.log
        assert f'"service.name": "{service}"' in process.log
        assert job_id in process.log


def test_a_successful_job_is_logged_at_the_default_level(
    start_processes: Callable[..., GatewayAndWorker],
) -> None:
    processes = start_processes(LOG_FORMAT="json")
    job_id = processes.run_job()
    processes.stop()
    [line] = [line for line in json_lines(processes.gateway.log) if line.get("job_id") == job_id]
    assert line["message"].startswith("POST /v1/jobs 202 ")
    assert (line["level"], line["trace_id"]) == ("info", TRACE)
    assert not [line for line in json_lines(processes.worker.log) if line.get("job_id") == job_id]


def test_the_worker_logs_a_retry_without_secrets(
    start_processes: Callable[..., GatewayAndWorker], tmp_path: Path
) -> None:
    (tmp_path / "failing_handlers.py").write_text(FAILING)
    processes = start_processes(
        LOG_FORMAT="json",
        WORKER_HANDLERS="failing_handlers",
        RETRY_BACKOFF_S="0.01",
        CONSUMER="w1",
    )
    job_id = processes.run_job("plan")
    processes.stop()
    [line] = [line for line in json_lines(processes.worker.log) if line.get("job_id") == job_id]
    assert line["message"].startswith("attempt 1 failed; the next one in 0.0 s: ")
    assert (line["task"], line["attempt"], line["trace_id"]) == ("plan", "1", TRACE)
    assert "busy; use sluice_ab12cd34_***" in line["message"]
    assert "0123456789abcdef" not in processes.worker.log


def test_a_host_under_pressure_takes_no_jobs(
    start_processes: Callable[..., GatewayAndWorker],
) -> None:
    """The required memory is never available: the gateway refuses jobs and shows why."""
    processes = start_processes(MIN_AVAILABLE_MB="1000000000")
    processes.worker._wait(lambda: "no new jobs are taken: " in processes.worker.log)
    processes.gateway._wait(lambda: "new jobs are refused: " in processes.gateway.log)
    with pytest.raises(urllib.error.HTTPError) as refused:
        processes.run_job()
    assert refused.value.code == 503
    problem = json.load(refused.value)
    assert problem["code"] == "under_pressure"
    assert "1000000000 MB is the minimum" in problem["detail"]
    assert int(refused.value.headers["retry-after"]) > 0
    processes.stop()


def test_without_a_journal_logs_go_to_stderr(
    start_processes: Callable[..., GatewayAndWorker],
) -> None:
    processes = start_processes(LOG_FORMAT="journal")
    processes.run_job()
    processes.stop()
    assert "<6>POST /v1/jobs 202 " in processes.gateway.log
    assert "<6>stopped consumer=" in processes.worker.log
