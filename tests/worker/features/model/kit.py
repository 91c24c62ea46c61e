"""What the tests of the model client share: a client at a scripted server, and a job that asks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

from common.aio import cancel
from common.contracts.workers import ModelState
from common.settings.worker import WorkerSettings
from tests.conftest import eventually
from tests.support.model_server import ModelServer
from worker.execution.context import JobContext
from worker.features.model.client import ModelClient
from worker.features.model.types import ChatRequest
from worker.registry import WorkerServices


class FakeLimits:
    """Remembers what it is told; every change can be waited for."""

    def __init__(self) -> None:
        self.told: list[tuple[int | None, str]] = []
        self.tasks: frozenset[str] = frozenset()

    @property
    def places(self) -> int | None:
        return self.told[-1][0]

    def set_limit(self, tasks: frozenset[str], places: int | None, why: str = "") -> None:
        self.tasks = tasks
        self.told.append((places, why))


class FakeJob:
    """As much of a JobContext as a client looks at."""

    def __init__(self, task: str = "chat") -> None:
        self.task = task
        self.traceparent: str | None = None
        self.remaining_s: float | None = None
        self._asked = asyncio.Event()

    def cancel(self) -> None:
        self._asked.set()

    async def wait_for_cancel(self) -> None:
        await self._asked.wait()

    @property
    def context(self) -> JobContext:
        return cast(JobContext, self)


class Notes:
    """A sink that writes everything down; each piece can be waited for."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, Any]] = []

    @property
    def said(self) -> str:
        return "".join(piece for kind, piece in self.pieces if kind == "text")

    async def text(self, delta: str) -> None:
        self.pieces.append(("text", delta))

    async def reasoning(self, delta: str) -> None:
        self.pieces.append(("reasoning", delta))

    async def progress(self, done: int, total: int) -> None:
        self.pieces.append(("progress", (done, total)))

    async def some(self, number: int = 1) -> None:
        """Wait for so many pieces."""
        await eventually(lambda: len(self.pieces) >= number)


def settings_for(server: ModelServer | None, data_dir: Path, **more: Any) -> WorkerSettings:
    """A worker's settings; `server` None for no MODEL_URL."""
    given: dict[str, Any] = {"sluice_data_dir": str(data_dir), **more}
    given.setdefault("model_connect_timeout_s", 20.0)  # the machine may be busy
    if server is not None:
        given.setdefault("model_url", server.url)
    return WorkerSettings(**given)


class Box:
    """A started client, and the house it was started in."""

    def __init__(self, client: ModelClient, limits: FakeLimits, house: WorkerServices) -> None:
        self.client = client
        self.limits = limits
        self.house = house

    async def ask(self, prompt: str = "hi", sink: Any = None, job: FakeJob | None = None) -> Any:
        job = job or FakeJob()
        request = ChatRequest([{"role": "user", "content": prompt}])
        return await self.client.complete(job.context, request, sink or Notes())

    async def is_in(self, state: ModelState) -> None:
        """Wait until the model is seen to be so."""
        await eventually(lambda: self.client.state is state)


@contextlib.asynccontextmanager
async def box_of(settings: WorkerSettings, *, watching: bool = True) -> AsyncIterator[Box]:
    """A client that lives as one in a worker does."""
    limits = FakeLimits()
    house = WorkerServices(*(cast(Any, each) for each in (None, limits, None, None, None, None)))
    client = ModelClient(settings)
    await client.start(house)
    running = asyncio.ensure_future(client.run()) if watching else None
    try:
        yield Box(client, limits, house)
    finally:
        if running is not None:
            await cancel(running)
        await client.close()
