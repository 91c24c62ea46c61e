"""The model, for handlers: ask it and watch the answer come; it takes care of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from common.contracts.jobs import Task
from common.contracts.workers import ModelState, WorkerField
from common.observability.heartbeats import ModelReading
from worker.execution.context import JobContext
from worker.features.model.availability import MODEL_TASKS, ModelMonitor, Prober
from worker.features.model.endpoint import EndpointLocator
from worker.features.model.requests import ModelRequester
from worker.features.model.timeouts import ModelTimeouts
from worker.features.model.types import ChatRequest, Completion, ModelCounters, Sink, Usage
from worker.features.model.wire.http import ModelHttpClient
from worker.registry import Service, WorkerServices

if TYPE_CHECKING:
    from common.settings.worker import WorkerSettings


class ModelClient(Service):
    """One model server, shared by all handlers of a worker.

    One that is there `beside` the model, for vectors only, keeps no task back and is not told of.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        beside: bool = False,
        tasks: Callable[[], frozenset[str]] = lambda: MODEL_TASKS,
    ) -> None:
        """`tasks` is called once, at the start: the tasks that are held back while the server is
        unavailable."""
        self._embeddings_only = beside
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
            setting="EMBED" if beside else "MODEL",
        )
        self._http = ModelHttpClient(self._timeouts.connect_s)
        self._monitor = ModelMonitor(
            self._locator, Prober(self._http), settings.model_slots, self._limit_tasks
        )
        self._counters = ModelCounters()
        self._tasks = tasks
        #: What to do with a new number of slots; nothing before the worker has started.
        self._set_limit: Callable[[int | None, str], None] = lambda slots, why: None

    # -- its life, with the worker's ---------------------------------------------------------------

    async def start(self, house: WorkerServices) -> None:
        """Take one quick look, so that no job begins before it is known how the model is."""
        tasks = self.tasks()

        def set_places(places: int | None, why: str) -> None:
            house.limits.set_limit(tasks, places, why)

        if not self._embeddings_only:
            if tasks:
                self._monitor.on_capacity = set_places
            house.heartbeat_fields[WorkerField.MODEL] = self.reading
        if self._locator.find() is not None:
            self._http.open()  # which is not the server's time
        try:
            await asyncio.wait_for(self._monitor.probe(), self._timeouts.connect_s)
        except asyncio.TimeoutError:
            self._monitor.mark_unreachable(f"{self._monitor.url} has not answered yet")

    async def run(self) -> None:
        await self._monitor.run()

    async def close(self) -> None:
        await self._monitor.close()
        await self._http.close()

    # -- what there is to know ---------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The model's name; empty while it is not known."""
        return self._monitor.name

    @property
    def state(self) -> ModelState:
        return self._monitor.state

    def reading(self) -> ModelReading:
        """The same for the worker's heartbeat, with what it has done so far."""
        return self._counters.reading(self._monitor)

    # -- answers and vectors -----------------------------------------------------------------------

    async def complete(self, context: JobContext, request: ChatRequest, sink: Sink) -> Completion:
        """One answer, handed to `sink` piece by piece as it comes.

        Where the job is canceled meanwhile it is what there was of it until then. Whatever ends
        this call closes the connection, which stops the server's work. Raises the errors of
        `worker.features.model.errors`.
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
        """One vector per text, in order. Raises errors of `worker.features.model.errors`."""
        return await self._requester.embeddings(
            texts, model=model, dimensions=dimensions, task=task
        )

    @cached_property
    def _requester(self) -> ModelRequester:
        return ModelRequester(self._http, self._monitor, self._timeouts, self._counters)
