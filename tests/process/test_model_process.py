"""A real worker and its model server as processes: status, an outage, a cancellation."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.test_alerts import NAME, names_used
from tests.process.test_logs_and_traces import GatewayAndWorker
from tests.support.backends import REAL, RealServer
from tests.worker.processes import ROOT, wait_until

pytestmark = pytest.mark.process


class Model:
    """`python -m tests.support.model_server`; can be killed and restarted at the same address."""

    def __init__(self, port: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.model_server", "--port", str(port)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def requests(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask(f"{self.url}/seen")
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()


def ask(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


@pytest.fixture
def models() -> Iterator[Callable[..., Model]]:
    made: list[Model] = []

    def make(port: int = 0) -> Model:
        made.append(Model(port))
        return made[-1]

    yield make
    for model in made:
        model.kill()


def test_an_outage_of_the_model_server(
    real_server: Callable[[str], RealServer], tmp_path: Path, models: Callable[..., Model]
) -> None:
    redis = real_server(REAL[0])
    redis.client.flushall()
    model = models()
    url = f"{model.url}/v1"
    processes = GatewayAndWorker(
        redis, tmp_path, MODEL_URL=url, HEARTBEAT_S="0.2", WORKER_HANDLERS=""
    )
    base = f"http://127.0.0.1:{processes.gateway.port}"

    def post(text: str) -> str:
        job = {"task": "chat", "payload": {"text": text}}
        job_id: str = ask(f"{base}/v1/jobs", job)["job_id"]
        return job_id

    def check() -> dict[str, Any]:
        found: dict[str, Any] = ask(f"{base}/v1/status")["checks"]["model"][0]
        return found

    def status(job_id: str) -> bytes:
        found: bytes = redis.client.hget(f"job:{job_id}", "status")
        return found

    try:
        wait_until(lambda: check()["ready"] == 1)
        assert (check()["status"], check()["slots"]) == ("pass", 2)
        answered = post("count to 3")
        wait_until(lambda: status(answered) == b"done")
        assert json.loads(redis.client.hget(f"job:{answered}", "result"))["text"] == "1 2 3"
        # A cancellation reaches the server.
        canceled = post("count to 5000 slowly")
        wait_until(lambda: model.requests[-1]["tokens"] > 3)
        ask(f"{base}/v1/jobs/{canceled}/cancel", {})
        wait_until(lambda: model.requests[-1]["hung_up"])
        wait_until(lambda: status(canceled) == b"canceled")
        # During the outage jobs wait, and the status shows why.
        model.kill()
        waiting = [post("count to 2") for _ in range(3)]
        wait_until(lambda: check()["status"] == "warn")
        assert "refused" in check()["output"]
        assert {status(job_id) for job_id in waiting} <= {b"queued", b"running"}
        models(model.port)
        wait_until(lambda: {status(job_id) for job_id in waiting} == {b"done"})
        wait_until(lambda: check()["status"] == "pass")

        def answers() -> int:
            [worker] = ask(f"{base}/v1/workers")["workers"]
            number: int = worker["model"]["answers"]
            return number

        wait_until(lambda: answers() >= 5)  # as of its next heartbeat
        with urllib.request.urlopen(f"{base}/metrics", timeout=20) as answer:
            reported = set(NAME.findall(answer.read().decode()))
        assert {name for name in names_used() if name.startswith("gw_model_")} <= reported
        processes.stop()
    finally:
        processes.close()
    assert "sluice model serve" in processes.worker.log
