"""A gateway and workers as real processes on one Redis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import httpx

from tests.support.processes.gateway import PYTHON_M, GatewayProcess
from tests.support.processes.worker import Process

Spawn = Callable[..., Process]


class Processes:
    """A gateway and any number of workers; data and handler modules are in one directory."""

    #: Settings of every worker, unless a test gives others.
    WORKER: ClassVar[dict[str, object]] = {}
    _USUAL: ClassVar[dict[str, object]] = {
        "lease_ms": 900, "block_ms": 50, "embedder": "off", "image_detector": "none",
    }  # fmt: skip

    def __init__(self, redis_url: str, spawn: Spawn, directory: Path, **settings: str) -> None:
        """`settings` are for gateways and workers."""
        self.directory = directory
        self._spawn = spawn
        data = str(directory / "data")
        self._settings = {"redis_url": redis_url, "sluice_data_dir": data, **settings}
        self.gateways: list[GatewayProcess] = []
        self.workers: list[Process] = []
        self.open_gateway()

    @property
    def gateway(self) -> GatewayProcess:
        return self.gateways[-1]

    @property
    def url(self) -> str:
        return self.gateway.url

    def open_gateway(self, port: int = 0) -> GatewayProcess:
        log = self.directory / f"gateway-{len(self.gateways)}.log"
        settings = {name.upper(): value for name, value in self._settings.items()}
        self.gateways.append(GatewayProcess(PYTHON_M, log, PORT=str(port), **settings))
        return self.gateway.wait_until_listening()

    def start_worker(
        self, name: str = "one", module: str = "worker", **settings: object
    ) -> Process:
        """A worker that may exit before it takes jobs."""
        given = {"consumer": name, "pythonpath": self.directory, **settings}
        settings = {**self._USUAL, **self.WORKER, **self._settings, **given}
        self.workers.append(self._spawn(module, **settings))
        return self.workers[-1]

    def worker(self, name: str = "one", module: str = "worker", **settings: object) -> Process:
        worker = self.start_worker(name, module, **settings)
        worker.wait_for_line(f"worker {name} takes jobs")
        return worker

    def request(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """Sends a request; `body` is sent as JSON, or unchanged if it is bytes."""
        kind = "content" if isinstance(body, bytes) else "json"
        given = {} if body is None else {kind: body}
        return self.gateway.http.request(method, path, **given, **options)

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.close()
