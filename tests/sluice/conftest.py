"""Fixtures: both clients, a scripted gateway, and a real gateway with a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice import AsyncSluice, Sluice
from sluice.transport import retry
from tests.support.client.blocking_proxy import BlockingProxy
from tests.support.client.scripted_gateway import ScriptedGateway
from tests.support.processes.gateway import PYTHON_M, ROOT, GatewayProcess
from tests.support.processes.worker import Process
from tests.support.servers import BUNDLED, RealServer, require_binary

Connect = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def connect(request: Any) -> Iterator[Connect]:
    """Creates blocking clients in one run of the test, and asyncio clients in the other."""
    loop = asyncio.new_event_loop()
    created: list[Any] = []

    def make(url: str, api_key: str | None = None, **options: Any) -> Any:
        if request.param == "sync":
            created.append(Sluice(url, api_key, **options))
        else:
            created.append(BlockingProxy(AsyncSluice(url, api_key, **options), loop))
        return created[-1]

    yield make
    for client in created:
        client.close()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.fixture
def script() -> Iterator[ScriptedGateway]:
    script = ScriptedGateway()
    yield script
    script.close()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the retry pauses."""
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(retry, "LONGEST_PAUSE_S", 0.01)


class Site:
    """A Redis, a gateway and workers, on separate ports and sockets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.redis = RealServer(require_binary(BUNDLED))
        self.gateway = self.open_gateway()
        self.workers: list[Process] = []

    def open_gateway(self, port: str = "0") -> GatewayProcess:
        log = self.folder / "gateway.log"
        data = str(self.folder / "data")
        created = GatewayProcess(
            PYTHON_M, log, REDIS_URL=self.redis.url, PORT=port, SLUICE_DATA_DIR=data
        )
        return created.wait_until_listening()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    def restart_gateway(self) -> None:
        """Start a new gateway process on the same port."""
        port = str(self.gateway.port)
        self.gateway.stop()
        self.gateway.close()
        self.gateway = self.open_gateway(port)

    def worker(self, module: str = "worker.echo_worker", **settings: object) -> Process:
        log = self.folder / f"worker{len(self.workers)}.log"
        defaults = {
            "redis_url": self.redis.url,
            "block_ms": 50,
            "consumer": f"w{len(self.workers)}",
            "sluice_data_dir": self.folder / "data",
            "embedder": "off",
            "image_detector": "none",
        }
        worker = Process(module, log, **{**defaults, **settings})
        self.workers.append(worker)
        worker.wait_for_line("takes jobs", 60)
        return worker

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.gateway.close()
        self.redis.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site per test session, with handlers that emit text, fail or wait."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "client_handlers.py").write_text(HANDLERS)
    site = Site(folder)
    try:
        site.worker("worker", worker_handlers="client_handlers", pythonpath=str(folder))
        yield site
    finally:
        site.close()


@pytest.fixture(scope="session")
def feature_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with the built-in handlers and the workflow of the examples."""
    site = Site(tmp_path_factory.mktemp("features"))
    try:
        path = str(ROOT / "examples" / "workflow")
        site.worker("worker", worker_handlers="release_notes", pythonpath=path)
        yield site
    finally:
        site.close()


#: `chat` emits words and can wait for a file, `code` fails, `tool` runs until it is canceled.
HANDLERS = """
import asyncio
from pathlib import Path

from sluice.worker import JobContext, JobError, Registry


class Wrong(JobError):
    kind = "wrong"


async def chat(context: JobContext, payload: dict) -> dict:
    words = payload.get("words", [])
    for number, word in enumerate(words, 1):
        await context.emit("message", {"text": word})
        if number == payload.get("stop_after"):
            while not Path(payload["gate"]).exists():
                await asyncio.sleep(0.02)
    return {"words": len(words)}


async def code(context: JobContext, payload: dict) -> None:
    raise Wrong("it went wrong")


async def tool(context: JobContext, payload: dict) -> None:
    await asyncio.sleep(600)


def register(registry: Registry) -> None:
    registry.add("chat", chat)
    registry.add("code", code)
    registry.add("tool", tool)
"""
