"""Requests to a model, its answers, and the counters of both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from sluice.common.contracts.jobs import Status
from sluice.common.contracts.workers import FIRST_TOKEN_BOUNDS
from sluice.common.observability.heartbeats import Histogram as HistogramReading
from sluice.common.observability.heartbeats import ModelReading
from sluice.common.observability.histogram import Histogram

if TYPE_CHECKING:
    from sluice.worker.features.model.availability import ModelMonitor

_REASON_CHARS = 1000
_NAME_CHARS = 256


class ModelCounters:
    """Counters since the worker's start."""

    def __init__(self) -> None:
        self._answers = self._failures = 0
        self._prompt = self._completion = self._cached = 0
        self._first_token = Histogram(FIRST_TOKEN_BOUNDS)

    def answered(self, completion: Completion) -> None:
        """Count an answer, including one whose job was canceled."""
        self._answers += 1
        self._add(completion.usage)
        if completion.first_token_ms is not None:
            self._first_token.observe(completion.first_token_ms / 1000)

    def embedded(self, usage: Usage) -> None:
        self._add(usage)

    def record_failure(self) -> None:
        """Count a request that failed, before or during its answer."""
        self._failures += 1

    def _add(self, usage: Usage) -> None:
        self._prompt += usage.prompt_tokens
        self._completion += usage.completion_tokens
        self._cached += usage.cached_tokens

    def reading(self, monitor: ModelMonitor) -> ModelReading:
        return ModelReading(
            state=monitor.state,
            reason=monitor.reason[:_REASON_CHARS],
            url=monitor.url[:_NAME_CHARS],
            name=monitor.name[:_NAME_CHARS],
            slots=monitor.slots,
            busy=monitor.semaphore.busy,
            waiting=monitor.semaphore.waiting,
            answers=self._answers,
            failures=self._failures,
            prompt_tokens=self._prompt,
            completion_tokens=self._completion,
            cached_tokens=self._cached,
            first_token=HistogramReading(
                counts=list(self._first_token.counts), sum=self._first_token.sum
            ),
        )


#: Finish reason of an answer whose job was canceled.
CANCELED = Status.CANCELED.value


@dataclass(frozen=True)
class ChatRequest:
    """A chat request. Members that are None are omitted."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_format: dict[str, Any] | None = None
    #: Functions in OpenAI's format.
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    #: Requested model, if not the default one.
    model: str | None = None


@dataclass(frozen=True)
class ToolCall:
    """A call that the model asks for; `arguments` is text that should be JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Usage:
    """Tokens used by an answer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )

    def view(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
            "cached_tokens": self.cached_tokens,
        }


@dataclass(frozen=True)
class Completion:
    """An answer, or the part received when it was stopped."""

    text: str
    finish_reason: str
    model: str
    usage: Usage = field(default_factory=Usage)
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    #: Milliseconds until the first token, and in total.
    first_token_ms: int | None = None
    ms: int = 0
    #: Speed of generation; None if unknown.
    tokens_per_s: float | None = None

    @property
    def canceled(self) -> bool:
        """True if the job was canceled."""
        return self.finish_reason == CANCELED


class Sink(Protocol):
    """Receives an answer while it is generated."""

    async def text(self, delta: str) -> None:
        """A part of the answer."""

    async def reasoning(self, delta: str) -> None:
        """A part of the reasoning."""

    async def progress(self, done: int, total: int) -> None:
        """Prompt tokens processed so far, and in total."""


class NullSink:
    """A sink that discards everything."""

    async def text(self, delta: str) -> None: ...

    async def reasoning(self, delta: str) -> None: ...

    async def progress(self, done: int, total: int) -> None: ...
