"""The task `embed`: one vector per text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from sluice.common.contracts.jobs import Task
from sluice.common.contracts.models import EMBED_MAX_TEXTS, ModelStep
from sluice.worker.execution.concurrency import JobCanceled, run_until_canceled
from sluice.worker.execution.context import JobContext, emit_progress
from sluice.worker.features.embedding.types import Embedder
from sluice.worker.features.model.types import Usage
from sluice.worker.handlers.prompt import one_prompt, prompt_field
from sluice.worker.registry import Registry

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings
    from sluice.worker.features.shared import SharedServices

MAX_TEXT_CHARS: Final = 100_000
MAX_CHARS: Final = 1_000_000
MAX_DIMENSIONS: Final = 65_536
#: Progress is reported for at least this many texts; fewer are done too quickly.
PROGRESS_MIN_TEXTS: Final = 8
#: Most progress events.
PROGRESS_EVENTS: Final = 20


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)]
Texts = Annotated[
    list[Text], Field(min_length=1, max_length=EMBED_MAX_TEXTS), BeforeValidator(_as_list)
]


class EmbedPayload(BaseModel):
    """One text or several.

    `dimensions` is checked against the length of the model's vectors; some servers can shorten
    them.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    input: Texts = prompt_field("input")
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = None

    _one_prompt = one_prompt("input")

    @field_validator("input")
    @classmethod
    def _not_too_much(cls, value: list[str]) -> list[str]:
        chars = sum(map(len, value))
        if chars > MAX_CHARS:
            raise ValueError(f"the texts have {chars} characters, {MAX_CHARS} at most")
        return value


def register(registry: Registry, settings: WorkerSettings, shared: SharedServices) -> None:
    add_handler(registry, shared.embedder)


def add_handler(registry: Registry, embedder: Embedder) -> None:
    """Register the task `embed`."""

    async def embed(context: JobContext, payload: EmbedPayload) -> dict[str, Any] | None:
        progress = _ProgressReporter(context, len(payload.input))
        work = embedder.embed_all(payload.input, payload.dimensions, progress.report)
        try:
            embedded = await run_until_canceled(context, work)
        except JobCanceled:
            return None
        result: dict[str, Any] = {
            "vectors": embedded.vectors,
            "dimensions": len(embedded.vectors[0]),
            "model": embedder.name,
            "usage": Usage(embedded.tokens).view(),
            "ms": context.elapsed_ms,
        }
        if embedded.truncated:
            result["truncated"] = embedded.truncated
        return result

    registry.add(Task.EMBED.value, embed)


class _ProgressReporter:
    """Reports the progress of jobs with many texts."""

    def __init__(self, context: JobContext, total: int) -> None:
        self._context = context
        self._total = total
        self._reported = 0

    async def report(self, done: int) -> None:
        if (
            self._total < PROGRESS_MIN_TEXTS
            or done - self._reported < self._total / PROGRESS_EVENTS
        ):
            return
        self._reported = done
        await emit_progress(self._context, ModelStep.EMBED, done, self._total)
