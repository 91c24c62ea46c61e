"""Which models there are: those that live workers say they ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from starlette.requests import Request

from common.contracts.jobs import Task
from common.observability.heartbeats import Heartbeat
from gateway.http.problems import FieldProblem, Problem
from gateway.observability.workers import live_workers
from gateway.state import GatewayState, state_of

#: How long an answer of Redis is believed.
CACHE_TTL_S = 1.0
#: Names that an answer lists.
MOST_NAMED = 20


@dataclass(frozen=True)
class ServedModel:
    """A model that a worker asks."""

    name: str
    #: What it is asked for.
    tasks: tuple[Task, ...]
    #: Since when, as far as is known.
    since_s: int


class ModelCatalog:
    """What this gateway last heard; asked for at most once a second, by all who wait together."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refreshed_at = float("-inf")
        self._known: tuple[ServedModel, ...] = ()
        self._refreshing: asyncio.Task[None] | None = None

    async def all(self, state: GatewayState) -> tuple[ServedModel, ...]:
        """Every model, by name; raises the Problem of a Redis that does not answer."""
        if self._clock() - self._refreshed_at >= CACHE_TTL_S:
            if self._refreshing is None:
                self._refreshing = asyncio.create_task(self._refresh(state))
                self._refreshing.add_done_callback(_retrieve_exception)
            await asyncio.shield(self._refreshing)
        return self._known

    async def _refresh(self, state: GatewayState) -> None:
        try:
            self._known = _known(await live_workers(state))
            self._refreshed_at = self._clock()
        finally:
            self._refreshing = None


def _retrieve_exception(asking: asyncio.Task[None]) -> None:
    """Whoever asked may have left before the answer."""
    if not asking.cancelled():
        asking.exception()


def models_of(request: Request) -> ModelCatalog:
    """What the gateway behind a request knows of models."""
    models: ModelCatalog = request.app.state.openai
    return models


async def check_model(request: Request, task: Task, name: str | None) -> str:
    """The model to name in the answer; a 404 where the one asked for is not there.

    Where no worker says which model it asks, any name will do.
    """
    known = [
        model.name
        for model in await models_of(request).all(state_of(request))
        if task in model.tasks
    ]
    if name is None:
        return known[0] if known else ""
    if known and name not in known:
        raise model_not_found(name, known)
    return name


def model_not_found(name: str, known: Iterable[str]) -> Problem:
    """A 404 that says what there is."""
    listed = ", ".join(f"`{one}`" for one in list(known)[:MOST_NAMED]) or "none at the moment"
    words = f"There is no model `{name}` here for this. There is: {listed}."
    return Problem(404, "model_not_found", words, [FieldProblem(pointer="/model", detail=words)])


def _known(beats: Iterable[Heartbeat]) -> tuple[ServedModel, ...]:
    since: dict[str, int] = {}
    tasks: dict[str, set[Task]] = {}
    for beat in beats:
        told = ((beat.model.name if beat.model else "", Task.CHAT), (beat.embedder, Task.EMBED))
        for name, task in told:
            if name:
                since[name] = min(since.get(name, beat.started_ms), beat.started_ms)
                tasks.setdefault(name, set()).add(task)
    return tuple(
        ServedModel(name, tuple(sorted(tasks[name])), since[name] // 1000) for name in sorted(since)
    )
