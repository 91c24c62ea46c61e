"""Real processes, and a real Redis server of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.served import Served, require_model
from tests.process.test_worker_process import handlers
from tests.support.backends import IN_PROCESSES, REAL, RealServer
from tests.worker.processes import Process, spawner


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    yield from spawner(tmp_path)


@pytest.fixture(params=IN_PROCESSES)
def server(request: Any, real_server: Callable[[str], RealServer]) -> RealServer:
    server = real_server(request.param)
    server.client.flushall()
    return server


@pytest.fixture
def one_server(real_server: Callable[[str], RealServer]) -> RealServer:
    server = real_server(REAL[1])
    server.client.flushall()
    return server


@pytest.fixture
def start(
    request: Any, one_server: RealServer, spawn: Callable[..., Process], tmp_path: Path
) -> Callable[..., Process]:
    """Starts workers by name, with the handlers of the requesting module."""
    environment = handlers(tmp_path, request.module.HANDLERS)

    def start(name: str, **settings: object) -> Process:
        worker = spawn(
            "worker",
            **{
                "redis_url": one_server.url,
                "consumer": name,
                "block_ms": 50,
                "max_inflight": 4,
                **environment,
                **settings,
            },
        )
        worker.wait_for_line(f"worker {name} takes jobs")
        return worker

    return start


@pytest.fixture(scope="session")
def real_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`sluice model serve` with the real model; tests with `xdist_group("model")` share one."""
    require_model()
    served = Served(tmp_path_factory.mktemp("model"))
    try:
        yield served.ready()
    finally:
        served.close()
