"""Redis, a scripted model server, a worker and a gateway for tests with the official SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes.gateway import PYTHON_M, GatewayProcess
from tests.support.processes.model import ScriptedModel
from tests.support.processes.worker import Process, wait_until
from tests.support.servers import BUNDLED, RealServer, require_binary

MODEL = "scripted-1"


def user(text: str) -> Any:
    """The messages of a chat with one question."""
    return [{"role": "user", "content": text}]


@dataclass
class OpenAIProcesses:
    """The running processes and their addresses."""

    redis: RealServer
    model: ScriptedModel
    gateway: GatewayProcess
    worker: Process
    start_worker: Any

    @property
    def url(self) -> str:
        """Value for `base_url`."""
        return f"{self.gateway.url}/v1"

    def get(self, path: str) -> Any:
        """Sends a GET request without the SDK."""
        return self.gateway.http.get(path).json()

    def ended(self, job_id: str, timeout_s: float = 20.0) -> str:
        """Waits until a job has ended; returns its status."""

        def status() -> str | None:
            found: str = self.get(f"/v1/jobs/{job_id}")["status"]
            return found if found in ("done", "error", "canceled") else None

        return str(wait_until(status, timeout_s))


@contextmanager
def run_processes(directory: Path) -> Iterator[OpenAIProcesses]:
    """Starts everything."""
    with ExitStack() as stack:
        redis = RealServer(require_binary(BUNDLED))
        stack.callback(redis.close)
        model = ScriptedModel()
        stack.callback(model.kill)
        started: list[Process] = []

        def start_worker() -> Process:
            worker = Process(
                "worker",
                directory / f"worker-{len(started)}.log",
                redis_url=redis.url,
                model_url=model.url,
                embedder="server",
                heartbeat_s=0.2,
                lease_ms=1500,
                sluice_data_dir=directory / "data",
            )
            started.append(worker)
            stack.callback(worker.kill)
            return worker

        worker = start_worker()
        settings = {"PORT": "0", "REDIS_URL": redis.url}
        gateway = GatewayProcess(PYTHON_M, directory / "gateway.log", **settings)
        stack.callback(gateway.close)
        gateway.wait_until_listening()
        processes = OpenAIProcesses(redis, model, gateway, worker, start_worker)
        wait_for_models(processes)
        yield processes
        assert "Traceback" not in gateway.log, gateway.log


def wait_for_models(processes: OpenAIProcesses) -> None:
    """Waits until a heartbeat of a worker names the model."""
    key = "jobs:stream:workers"

    def is_reported() -> bool:
        names: Any = processes.redis.client.zrange(key, 0, -1)
        heartbeats: Any = [
            processes.redis.client.get(f"jobs:stream:worker:{name.decode()}") for name in names
        ]
        return any(MODEL in json.loads(each).get("embedder", "") for each in heartbeats if each)

    wait_until(is_reported)
