"""What real processes tell of a job: one trace across both, and lines that name it."""

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
#: Answers every task, whatever its payload.
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


class House:
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
        """Post a job, wait for its end."""
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
def house(
    real_server: Callable[[str], RealServer], tmp_path: Path
) -> Iterator[Callable[..., House]]:
    made: list[House] = []

    def make(**environment: str) -> House:
        server = real_server(REAL[0])
        server.client.flushall()
        made.append(House(server, tmp_path, **environment))
        return made[-1]

    yield make
    for house in made:
        house.close()


def json_lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def test_both_send_their_last_spans_when_they_stop(house: Callable[..., House]) -> None:
    made = house(OTEL_TRACES_EXPORTER="console")
    job_id = made.run_job()
    made.stop()
    for process, span, service in (
        (made.gateway, "send jobs:stream", "sluice-gateway"),
        (made.worker, "process jobs:stream", "sluice-worker"),
    ):
        assert f'"name": "{span}"' in process.log
        assert f'"trace_id": "0x{TRACE}"' in process.log
        assert f'"service.name": "{service}"' in process.log
        assert job_id in process.log


def test_a_job_that_goes_well_has_a_line_at_the_default_level(house: Callable[..., House]) -> None:
    made = house(LOG_FORMAT="json")
    job_id = made.run_job()
    made.stop()
    [line] = [line for line in json_lines(made.gateway.log) if line.get("job_id") == job_id]
    assert line["message"].startswith("POST /v1/jobs 202 ")
    assert (line["level"], line["trace_id"]) == ("info", TRACE)
    assert not [line for line in json_lines(made.worker.log) if line.get("job_id") == job_id]


def test_a_retry_is_told_by_the_worker_without_its_secrets(
    house: Callable[..., House], tmp_path: Path
) -> None:
    (tmp_path / "failing_handlers.py").write_text(FAILING)
    made = house(
        LOG_FORMAT="json",
        WORKER_HANDLERS="failing_handlers",
        RETRY_BACKOFF_S="0.01",
        CONSUMER="w1",
    )
    job_id = made.run_job("plan")
    made.stop()
    [line] = [line for line in json_lines(made.worker.log) if line.get("job_id") == job_id]
    assert line["message"].startswith("attempt 1 failed; the next one in 0.0 s: ")
    assert (line["task"], line["attempt"], line["trace_id"]) == ("plan", "1", TRACE)
    assert "busy; use sluice_ab12cd34_***" in line["message"]
    assert "0123456789abcdef" not in made.worker.log


def test_a_box_that_is_under_pressure_takes_nothing_until_told_otherwise(
    house: Callable[..., House],
) -> None:
    """Nobody has so much memory: the gateway refuses, and says why."""
    made = house(MIN_AVAILABLE_MB="1000000000")
    made.worker._wait(lambda: "no new jobs are taken: " in made.worker.log)
    made.gateway._wait(lambda: "new jobs are refused: " in made.gateway.log)
    with pytest.raises(urllib.error.HTTPError) as refused:
        made.run_job()
    assert refused.value.code == 503
    problem = json.load(refused.value)
    assert problem["code"] == "under_pressure"
    assert "1000000000 MB is the minimum" in problem["detail"]
    assert int(refused.value.headers["retry-after"]) > 0
    made.stop()


def test_without_a_journal_its_lines_go_to_stderr(house: Callable[..., House]) -> None:
    made = house(LOG_FORMAT="journal")
    made.run_job()
    made.stop()
    assert "<6>POST /v1/jobs 202 " in made.gateway.log
    assert "<6>stopped consumer=" in made.worker.log
