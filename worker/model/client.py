"""The model, for handlers: ask it and watch the answer come; it takes care of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from common.contracts.jobs import Task
from common.contracts.workers import ModelState, WorkerField
from worker.context import JobContext
from worker.model.budget import Budgets
from worker.model.endpoint import Place
from worker.model.http import Http
from worker.model.numbers import Numbers
from worker.model.probe import Prober
from worker.model.watch import MODEL_TASKS, Watch
from worker.services import House, Service
from worker.signs import ModelReading

if TYPE_CHECKING:
    from common.settings import WorkerSettings
    from worker.model.answering import Answering
    from worker.model.types import ChatRequest, Completion, Sink, Usage


class ModelClient(Service):
    """One model server, shared by all handlers of a worker.

    One that is there `beside` the model, for vectors only, keeps no task back and is not told of.
    """

    def __init__(self, settings: WorkerSettings, *, beside: bool = False) -> None:
        self._beside = beside
        self._budgets = Budgets(
            settings.model_connect_timeout_s,
            settings.model_first_token_timeout_s,
            settings.model_idle_timeout_s,
            settings.model_total_timeout_s,
        )
        self._place = Place(
            settings.model_url,
            settings.sluice_data_dir,
            key=settings.model_api_key,
            model=settings.model_name,
            setting="EMBED" if beside else "MODEL",
        )
        self._http = Http(self._budgets.connect_s)
        self._watch = Watch(self._place, Prober(self._http), settings.model_slots)
        self._numbers = Numbers()
        #: Tasks that are kept back while the server is away; asked once, at the start.
        self.tasks: Callable[[], frozenset[str]] = lambda: MODEL_TASKS

    # -- its life, with the worker's ---------------------------------------------------------------

    async def start(self, house: House) -> None:
        """Take one quick look, so that no job begins before it is known how the model is."""
        tasks = self.tasks()

        def set_places(places: int | None, why: str) -> None:
            house.limits.set_places(tasks, places, why)

        if not self._beside:
            if tasks:
                self._watch.on_places = set_places
            house.telling[WorkerField.MODEL.value] = self.reading
        if self._place.find() is not None:
            self._http.open()  # which is not the server's time
        try:
            await asyncio.wait_for(self._watch.look(), self._budgets.connect_s)
        except asyncio.TimeoutError:
            self._watch.missed(f"{self._watch.url} has not answered yet")

    async def run(self) -> None:
        """Keep an eye on it."""
        await self._watch.run()

    async def close(self) -> None:
        """Close every connection."""
        await self._watch.close()
        await self._http.close()

    # -- what there is to know ---------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The model's name; empty while it is not known."""
        return self._watch.name

    @property
    def state(self) -> ModelState:
        """How the server is."""
        return self._watch.state

    def reading(self) -> ModelReading:
        """The same for the worker's heartbeat, with what it has done so far."""
        return self._numbers.reading(self._watch)

    # -- answers and vectors -----------------------------------------------------------------------

    async def complete(self, context: JobContext, request: ChatRequest, sink: Sink) -> Completion:
        """One answer, handed to `sink` piece by piece as it comes.

        Where the job is canceled meanwhile it is what there was of it until then. Whatever ends
        this call closes the connection, which stops the server's work. Raises the errors of
        `worker.model.errors`.
        """
        return await self._answering.complete(context, request, sink)

    async def embeddings(
        self,
        texts: Sequence[str],
        *,
        model: str = "",
        dimensions: int | None = None,
        task: str = Task.EMBED.value,
    ) -> tuple[list[list[float]], Usage]:
        """One vector a text, in their order. Raises the errors of `worker.model.errors`."""
        return await self._answering.embeddings(
            texts, model=model, dimensions=dimensions, task=task
        )

    @cached_property
    def _answering(self) -> Answering:
        from worker.model.answering import Answering

        return Answering(self._http, self._watch, self._budgets, self._numbers)
