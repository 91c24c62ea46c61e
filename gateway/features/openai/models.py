"""The models that live workers report in their heartbeats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from starlette.requests import Request

from sluice.common.contracts.jobs import Task
from sluice.common.observability.heartbeats import Heartbeat
from sluice.gateway.http.problems import FieldProblem, Problem
from sluice.gateway.state import state_of

#: Most names that an error message lists.
MOST_NAMED = 20


@dataclass(frozen=True)
class ServedModel:
    """A model that a worker uses."""

    name: str
    #: The tasks that it is used for.
    tasks: tuple[Task, ...]
    #: Start of the oldest worker that uses it, Unix seconds.
    since_s: int


async def served_models(request: Request) -> tuple[ServedModel, ...]:
    """All models by name; raises a problem if Redis does not answer."""
    return _known(await state_of(request).workers.cached())


async def check_model(request: Request, task: Task, name: str | None) -> str:
    """The model to name in the response; raises 404 for an unknown one.

    If no worker reports its model, any name is accepted.
    """
    known = [model.name for model in await served_models(request) if task in model.tasks]
    if name is None:
        return known[0] if known else ""
    if known and name not in known:
        raise model_not_found(name, known)
    return name


def model_not_found(name: str, known: Iterable[str]) -> Problem:
    """A 404 that lists the available models."""
    listed = ", ".join(f"`{one}`" for one in list(known)[:MOST_NAMED]) or "none at the moment"
    words = f"There is no model `{name}` for this task. Available: {listed}."
    return Problem(404, "model_not_found", words, [FieldProblem(pointer="/model", detail=words)])


def _known(beats: Iterable[Heartbeat]) -> tuple[ServedModel, ...]:
    since: dict[str, int] = {}
    tasks: dict[str, set[Task]] = {}
    for beat in beats:
        used = ((beat.model.name if beat.model else "", Task.CHAT), (beat.embedder, Task.EMBED))
        for name, task in used:
            if name:
                since[name] = min(since.get(name, beat.started_ms), beat.started_ms)
                tasks.setdefault(name, set()).add(task)
    return tuple(
        ServedModel(name, tuple(sorted(tasks[name])), since[name] // 1000) for name in sorted(since)
    )
