"""Real processes, and a real Redis server of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.model.served import Served, require_model
from tests.support.processes.base import Processes
from tests.support.processes.gateway import StartGateway, gateway_starter
from tests.support.processes.worker import Process, handler_module, spawner
from tests.support.servers import (
    BUNDLED,
    IN_PROCESSES,
    REAL,
    RealServer,
    require_binary,
    server_binary,
)


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    yield from spawner(tmp_path)


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[StartGateway]:
    yield from gateway_starter(tmp_path)


P = TypeVar("P", bound=Processes)


@pytest.fixture
def start_processes(spawn: Callable[..., Process], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts a gateway of a kind of `Processes`, which can start workers; all end with the test."""
    started: list[Processes] = []

    def start(kind: type[P], redis_url: str, **settings: str) -> P:
        processes = kind(redis_url, spawn, tmp_path, **settings)
        started.append(processes)
        return processes

    yield start
    for processes in started:
        processes.close()


@pytest.fixture(params=IN_PROCESSES)
def server(request: pytest.FixtureRequest, real_server: Callable[[str], RealServer]) -> RealServer:
    server = real_server(request.param)
    server.client.flushall()
    return server


@pytest.fixture
def one_server(
    request: pytest.FixtureRequest, real_server: Callable[[str], RealServer]
) -> RealServer:
    """The newest server that is installed; in the fast tier the embedded one."""
    fast = request.config.getoption("--tier") == "fast"
    newest = next((name for name in reversed(REAL) if server_binary(name)), BUNDLED)
    server = real_server(BUNDLED if fast else newest)
    server.client.flushall()
    return server


@pytest.fixture(scope="module")
def module_server() -> Iterator[RealServer]:
    server = RealServer(require_binary(BUNDLED))
    yield server
    server.close()


@pytest.fixture
def aof() -> Iterator[RealServer]:
    """A server that a test may kill and restart."""
    server = RealServer(require_binary(BUNDLED), durable=True)
    yield server
    server.close()


@pytest.fixture
def start_worker(
    request: pytest.FixtureRequest, spawn: Callable[..., Process], tmp_path: Path
) -> Callable[..., Process]:
    """Starts workers on a server, with the handlers of the requesting module."""
    environment = handler_module(tmp_path, request.module.HANDLERS)

    def start(server: RealServer, name: str = "one", **settings: object) -> Process:
        usual = {"redis_url": server.url, "block_ms": 50, "max_inflight": 4, "embedder": "off"}
        worker = spawn("worker", consumer=name, **{**usual, **environment, **settings})
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
