"""Helpers of the model tests: a client of a scripted server, and a fake job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from sluice.common.aio import cancel
from sluice.common.contracts.workers import ModelState
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.execution.context import JobContext
from sluice.worker.features.model.client import ModelClient
from sluice.worker.features.model.types import ChatRequest
from sluice.worker.registry import WorkerServices
from tests.support.model.answers import Answer
from tests.support.model.server import ModelServer
from tests.support.model.wire import ReceivedRequest
from tests.support.waiting import eventually


class FakeLimits:
    """Records the limits set."""

    def __init__(self) -> None:
        self.history: list[tuple[int | None, str]] = []
        self.tasks: frozenset[str] = frozenset()

    @property
    def slots(self) -> int | None:
        return self.history[-1][0]

    @property
    def reason(self) -> str:
        return self.history[-1][1]

    def set_limit(self, tasks: frozenset[str], slots: int | None, why: str = "") -> None:
        self.tasks = tasks
        self.history.append((slots, why))


class FakeJob:
    """The part of a JobContext that the client and tool calls use."""

    job_id = "job-1"
    tenant = "acme"

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


def fake_services() -> WorkerServices:
    """Services of a worker with fake limits and nothing else."""
    parts = (None, FakeLimits(), None, None, None, None)
    return WorkerServices(*(cast(Any, each) for each in parts))


def settings_for(server: ModelServer | None, data_dir: Path, **more: Any) -> WorkerSettings:
    """Settings of a worker; `server` is None for no MODEL_URL."""
    given: dict[str, Any] = {"sluice_data_dir": str(data_dir), **more}
    given.setdefault("model_connect_timeout_s", 20.0)  # the machine may be busy
    if server is not None:
        given.setdefault("model_url", server.url)
    return WorkerSettings(**given)


class ModelHarness:
    """A client that is started and stopped as in a worker, and its server."""

    def __init__(self, server: ModelServer | None, settings: WorkerSettings) -> None:
        self._server = server
        self.client = ModelClient(settings)
        self.services = fake_services()
        self.limits = cast(FakeLimits, self.services.limits)
        self._running: asyncio.Future[Any] | None = None

    @property
    def server(self) -> ModelServer:
        assert self._server is not None
        return self._server

    @property
    def state(self) -> ModelState:
        return self.client.state

    async def start(self, *, watching: bool = True) -> None:
        await self.client.start(self.services)
        if watching:
            self._running = asyncio.ensure_future(self.client.run())

    async def close(self) -> None:
        if self._running is not None:
            await cancel(self._running)
        await self.client.close()

    async def ask(self, prompt: str = "hi", sink: Any = None, job: FakeJob | None = None) -> Any:
        request = ChatRequest([{"role": "user", "content": prompt}])
        return await self.complete(request, sink, job)

    async def complete(self, request: ChatRequest, sink: Any = None, job: Any = None) -> Any:
        context = (job or FakeJob()).context
        return await self.client.complete(context, request, sink or RecordingSink())

    def asking(self, sink: Any = None, job: FakeJob | None = None) -> asyncio.Future[Any]:
        """A request in progress."""
        return asyncio.ensure_future(self.ask(sink=sink, job=job))

    async def begin(self, answer: Answer) -> tuple[FakeJob, asyncio.Future[Any], ReceivedRequest]:
        """A job whose request will be answered so, and the request as the server received it."""
        self.server.add_answers(answer)
        job = FakeJob()
        asking = self.asking(job=job)
        return job, asking, await self.server.wait_for_request(len(self.server.requests) + 1)

    async def is_in(self, state: ModelState) -> None:
        """Wait until the model has this state."""
        await eventually(lambda: self.client.state is state)


def announce(directory: Path, url: str, model: Any = "announced") -> None:
    """Announce a served model as `sluice model serve` does."""
    fresh = directory / "fresh"
    fresh.write_text(json.dumps({"url": url, "model": model, "pid": 1}))
    fresh.replace(directory / "model.json")


MakeModel = Callable[..., Awaitable[ModelHarness]]
