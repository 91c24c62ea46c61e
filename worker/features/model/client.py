"""The model client that handlers use for completions and embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from sluice.common.contracts.jobs import Task
from sluice.common.contracts.workers import ModelState, WorkerField
from sluice.common.observability.heartbeats import ModelReading
from sluice.worker.execution.context import JobContext
from sluice.worker.features.model.availability import MODEL_TASKS, ModelMonitor, Prober
from sluice.worker.features.model.circuit import (
    TrialOutcome,
    request_token,
    request_vector,
    send_trial,
)
from sluice.worker.features.model.endpoint import EndpointLocator
from sluice.worker.features.model.requests import ModelRequester
from sluice.worker.features.model.timeouts import ModelTimeouts
from sluice.worker.features.model.types import ChatRequest, Completion, ModelCounters, Sink, Usage
from sluice.worker.features.model.wire.http import ModelHttpClient
from sluice.worker.registry import Service, WorkerServices

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings
    from sluice.worker.queue.limits import TaskLimits


class ModelClient(Service):
    """Client of one model server, shared by all handlers of a worker.

    With `embeddings_only` it is the client of a second server that only computes embeddings: it
    holds no task back and does not appear in the heartbeat.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        embeddings_only: bool = False,
        tasks: Callable[[], frozenset[str]] = lambda: MODEL_TASKS,
    ) -> None:
        """`tasks` is called once, in `start`. It returns the tasks that are held back while the
        server is unavailable."""
        self._embeddings_only = embeddings_only
        self._timeouts = ModelTimeouts(
            settings.model_connect_timeout_s,
            settings.model_first_token_timeout_s,
            settings.model_idle_timeout_s,
            settings.model_total_timeout_s,
        )
        self._locator = EndpointLocator(
            settings.model_url,
            settings.sluice_data_dir,
            key=settings.model_api_key,
            model=settings.model_name,
            setting="EMBED" if embeddings_only else "MODEL",
        )
        self._http = ModelHttpClient(self._timeouts.connect_s)
        self._monitor = ModelMonitor(
            self._locator,
            Prober(self._http),
            partial(send_trial, request_vector if embeddings_only else request_token, self._http),
            settings.model_slots,
            self._limit_tasks,
        )
        self._counters = ModelCounters()
        self._tasks = tasks
        self._held_tasks: frozenset[str] = frozenset()
        self._limits: TaskLimits | None = None

    # -- service -----------------------------------------------------------------------------------

    async def start(self, services: WorkerServices) -> None:
        """Probe the server once, so that its state is known before the first job starts."""
        if not self._embeddings_only:
            self._held_tasks = self._tasks()
            self._limits = services.limits
            services.heartbeat_fields[WorkerField.MODEL] = self.reading
        if self._locator.find() is not None:
            self._http.open()  # before the probe: the time it takes is not the server's
        try:
            await asyncio.wait_for(self._monitor.probe(), self._timeouts.connect_s)
        except asyncio.TimeoutError:
            self._monitor.mark_unreachable(f"{self._monitor.url} has not answered yet")

    def _limit_tasks(self, slots: int | None, why: str) -> None:
        """Let as many jobs run as the model has slots for; 0 holds its tasks back."""
        if self._limits is not None and self._held_tasks:
            self._limits.set_limit(self._held_tasks, slots, why)

    async def run(self) -> None:
        await self._monitor.run()

    async def close(self) -> None:
        await self._monitor.close()
        await self._http.close()

    # -- state -------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The model's name; empty while unknown."""
        return self._monitor.name

    @property
    def state(self) -> ModelState:
        return self._monitor.state

    def reading(self) -> ModelReading:
        """State and counters for the worker's heartbeat."""
        return self._counters.reading(self._monitor)

    # -- requests ----------------------------------------------------------------------------------

    async def complete(self, context: JobContext, request: ChatRequest, sink: Sink) -> Completion:
        """Request one completion; `sink` receives it in pieces as they arrive.

        If the job is canceled meanwhile, returns what had arrived until then. However the call
        ends, it closes the connection, which makes the server stop generating. Raises the errors of
        `sluice.worker.features.model.errors`.
        """
        return await self._requester.complete(context, request, sink)

    async def embeddings(
        self,
        texts: Sequence[str],
        *,
        model: str = "",
        dimensions: int | None = None,
        task: str = Task.EMBED.value,
    ) -> tuple[list[list[float]], Usage]:
        """One vector per text, in order. Raises the errors of `model.errors`."""
        return await self._requester.embeddings(
            texts, model=model, dimensions=dimensions, task=task
        )

    async def try_embedding(self, model: str = "") -> TrialOutcome:
        """Whether the server computes embeddings. A failure does not count as one of the server.

        Raises NoModel, or ModelUnavailable while the server is down.
        """
        endpoint = await self._monitor.endpoint(Task.EMBED.value)
        return await send_trial(request_vector, self._http, endpoint, model or self._monitor.model)

    @cached_property
    def _requester(self) -> ModelRequester:
        return ModelRequester(self._http, self._monitor, self._timeouts, self._counters)
