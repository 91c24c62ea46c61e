"""What is asked of a model and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from common.contracts.jobs import Status
from common.contracts.workers import FIRST_TOKEN_BOUNDS
from common.observability.heartbeats import Histogram as HistogramReading
from common.observability.heartbeats import ModelReading
from common.observability.histogram import Histogram

if TYPE_CHECKING:
    from worker.features.model.availability import ModelMonitor

_REASON_CHARS = 1000
_NAME_CHARS = 256


class ModelCounters:
    """Counted since the worker began."""

    def __init__(self) -> None:
        self._answers = self._failures = 0
        self._prompt = self._completion = self._cached = 0
        self._first_token = Histogram(FIRST_TOKEN_BOUNDS)

    def answered(self, completion: Completion) -> None:
        """An answer has ended, perhaps because its job was canceled."""
        self._answers += 1
        self._add(completion.usage)
        if completion.first_token_ms is not None:
            self._first_token.observe(completion.first_token_ms / 1000)

    def embedded(self, usage: Usage) -> None:
        self._add(usage)

    def record_failure(self) -> None:
        """An answer was begun, or not even that, and came to nothing."""
        self._failures += 1

    def _add(self, usage: Usage) -> None:
        self._prompt += usage.prompt_tokens
        self._completion += usage.completion_tokens
        self._cached += usage.cached_tokens

    def reading(self, watch: ModelMonitor) -> ModelReading:
        return ModelReading(
            state=watch.state,
            reason=watch.reason[:_REASON_CHARS],
            url=watch.url[:_NAME_CHARS],
            name=watch.name[:_NAME_CHARS],
            slots=watch.slots,
            busy=watch.semaphore.busy,
            waiting=watch.semaphore.waiting,
            answers=self._answers,
            failures=self._failures,
            prompt_tokens=self._prompt,
            completion_tokens=self._completion,
            cached_tokens=self._cached,
            first_token=HistogramReading(
                counts=list(self._first_token.counts), sum=self._first_token.sum
            ),
        )


#: How an answer ended that was stopped because its job was canceled.
CANCELED = Status.CANCELED.value


@dataclass(frozen=True)
class ChatRequest:
    """One request for an answer. Members of None are left to the server."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_format: dict[str, Any] | None = None
    #: Functions as OpenAI describes them.
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    #: Another model than the usual one, where the server has several.
    model: str | None = None


@dataclass(frozen=True)
class ToolCall:
    """A call that the model wants made; `arguments` is text, meant to be JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Usage:
    """What an answer cost, in tokens."""

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
        """As results and events show it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
            "cached_tokens": self.cached_tokens,
        }


@dataclass(frozen=True)
class Completion:
    """A whole answer, or what there was of it when it was stopped."""

    text: str
    finish_reason: str
    model: str
    usage: Usage = field(default_factory=Usage)
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    #: Milliseconds until the first token, and in all.
    first_token_ms: int | None = None
    ms: int = 0
    #: Tokens a second while answering, where the server says or it can be told.
    tokens_per_s: float | None = None

    @property
    def canceled(self) -> bool:
        """Whether it was stopped because the job was canceled."""
        return self.finish_reason == CANCELED


class Sink(Protocol):
    """Where an answer goes while it is made."""

    async def text(self, delta: str) -> None:
        """A piece of the answer."""

    async def reasoning(self, delta: str) -> None:
        """A piece of the thoughts before it."""

    async def progress(self, done: int, total: int) -> None:
        """How much of the prompt the server has read, in tokens."""


class NullSink:
    """A sink for answers that nobody watches."""

    async def text(self, delta: str) -> None:
        """Say nothing."""

    async def reasoning(self, delta: str) -> None:
        """Say nothing."""

    async def progress(self, done: int, total: int) -> None:
        """Say nothing."""
