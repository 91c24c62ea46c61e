"""Redis, a scripted model server, a worker and a gateway for tests with the official SDK."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gateway.processes import PYTHON_M, ROOT, GatewayProcess, environment
from tests.support.backends import BUNDLED, RealServer, require_binary
from tests.worker.processes import Process, wait_until

MODEL = "scripted-1"


@dataclass
class OpenAIRig:
    """The running processes and their addresses."""

    redis: RealServer
    model_url: str
    gateway: GatewayProcess
    worker: Process
    start_worker: Any

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    @property
    def url(self) -> str:
        """Value for `base_url`."""
        return f"{self.origin}/v1"

    def get(self, path: str) -> Any:
        """Sends a GET request without the SDK."""
        with urllib.request.urlopen(f"{self.origin}{path}", timeout=20) as answer:
            return json.load(answer)

    def model_requests(self) -> list[dict[str, Any]]:
        """Requests of the model server so far, and whether they have ended."""
        with urllib.request.urlopen(f"{self.model_url}/seen", timeout=20) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found

    def jobs(self) -> list[str]:
        keys: Any = self.redis.client.keys("job:*")
        return [key.decode()[4:] for key in keys if key.count(b":") == 1]

    def ended(self, job_id: str, timeout_s: float = 20.0) -> str:
        """Waits until a job has ended; returns its status."""

        def status() -> str | None:
            found: str = self.get(f"/v1/jobs/{job_id}")["status"]
            return found if found in ("done", "error", "canceled") else None

        return str(wait_until(status, timeout_s))


@contextmanager
def model_server(directory: Path) -> Iterator[str]:
    """Runs a scripted model server; yields its URL."""
    with (directory / "model.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.model_server", "--port", "0"],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
    finally:
        process.kill()
        process.communicate()


@contextmanager
def running_rig(directory: Path, **settings: str) -> Iterator[OpenAIRig]:
    """Starts everything; the gateway gets these settings."""
    with ExitStack() as stack:
        redis = RealServer(require_binary(BUNDLED))
        stack.callback(redis.close)
        model_url = stack.enter_context(model_server(directory))
        started: list[Process] = []

        def start_worker() -> Process:
            worker = Process(
                "worker",
                directory / f"worker-{len(started)}.log",
                redis_url=redis.url,
                model_url=model_url,
                embedder="server",
                heartbeat_s=0.5,
                lease_ms=1500,
                sluice_data_dir=directory / "data",
            )
            started.append(worker)
            stack.callback(worker.kill)
            return worker

        worker = start_worker()
        named = {"PORT": "0", "REDIS_URL": redis.url, **settings}
        gateway = GatewayProcess(PYTHON_M, directory / "gateway.log", **named)
        stack.callback(gateway.close)
        gateway.wait_until_listening()
        rig = OpenAIRig(redis, model_url, gateway, worker, start_worker)
        wait_for_models(rig)
        yield rig
        assert "Traceback" not in gateway.log, gateway.log


def wait_for_models(rig: OpenAIRig) -> None:
    """Waits until a heartbeat of a worker names the model."""
    key = "jobs:stream:workers"

    def is_reported() -> bool:
        names: Any = rig.redis.client.zrange(key, 0, -1)
        heartbeats: Any = [
            rig.redis.client.get(f"jobs:stream:worker:{name.decode()}") for name in names
        ]
        return any(MODEL in json.loads(each).get("embedder", "") for each in heartbeats if each)

    wait_until(is_reported)
