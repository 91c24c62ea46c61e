"""Helpers of the model tests: a client of a scripted server, and a fake job."""

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
    """Records the limits set; every change can be awaited."""

    def __init__(self) -> None:
        self.history: list[tuple[int | None, str]] = []
        self.tasks: frozenset[str] = frozenset()

    @property
    def slots(self) -> int | None:
        return self.history[-1][0]

    def set_limit(self, tasks: frozenset[str], slots: int | None, why: str = "") -> None:
        self.tasks = tasks
        self.history.append((slots, why))


class FakeJob:
    """The part of a JobContext that the client uses."""

    def __init__(self, task: str = "chat") -> None:
        self.task = task
        self.traceparent: str | None = None
        self.remaining_s: float | None = None
        self._cancel = asyncio.Event()

    def cancel(self) -> None:
        self._cancel.set()

    async def wait_for_cancel(self) -> None:
        await self._cancel.wait()

    @property
    def context(self) -> JobContext:
        return cast(JobContext, self)


class RecordingSink:
    """A sink that records everything; each piece can be awaited."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, Any]] = []

    @property
    def received(self) -> str:
        return "".join(piece for kind, piece in self.pieces if kind == "text")

    async def text(self, delta: str) -> None:
        self.pieces.append(("text", delta))

    async def reasoning(self, delta: str) -> None:
        self.pieces.append(("reasoning", delta))

    async def progress(self, done: int, total: int) -> None:
        self.pieces.append(("progress", (done, total)))

    async def some(self, number: int = 1) -> None:
        """Wait for this many pieces."""
        await eventually(lambda: len(self.pieces) >= number)


def settings_for(server: ModelServer | None, data_dir: Path, **more: Any) -> WorkerSettings:
    """Settings of a worker; `server` is None for no MODEL_URL."""
    given: dict[str, Any] = {"sluice_data_dir": str(data_dir), **more}
    given.setdefault("model_connect_timeout_s", 20.0)  # the machine may be busy
    if server is not None:
        given.setdefault("model_url", server.url)
    return WorkerSettings(**given)


class ClientRig:
    """A started client, and its services."""

    def __init__(self, client: ModelClient, limits: FakeLimits, services: WorkerServices) -> None:
        self.client = client
        self.limits = limits
        self.services = services

    async def ask(self, prompt: str = "hi", sink: Any = None, job: FakeJob | None = None) -> Any:
        job = job or FakeJob()
        request = ChatRequest([{"role": "user", "content": prompt}])
        return await self.client.complete(job.context, request, sink or RecordingSink())

    async def is_in(self, state: ModelState) -> None:
        """Wait until the model has this state."""
        await eventually(lambda: self.client.state is state)


@contextlib.asynccontextmanager
async def open_client(
    settings: WorkerSettings, *, watching: bool = True
) -> AsyncIterator[ClientRig]:
    """A client that is started and stopped as in a worker."""
    limits = FakeLimits()
    services = WorkerServices(*(cast(Any, each) for each in (None, limits, None, None, None, None)))
    client = ModelClient(settings)
    await client.start(services)
    running = asyncio.ensure_future(client.run()) if watching else None
    try:
        yield ClientRig(client, limits, services)
    finally:
        if running is not None:
            await cancel(running)
        await client.close()
