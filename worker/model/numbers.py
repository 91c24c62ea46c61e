"""What the model has done for this worker, in plain integers, for its heartbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.contracts.workers import FIRST_TOKEN_BOUNDS
from common.histogram import Histogram
from worker.signs import Histogram as Told
from worker.signs import ModelReading

if TYPE_CHECKING:
    from worker.model.types import Completion, Usage
    from worker.model.watch import Watch

_REASON_CHARS = 1000
_NAME_CHARS = 256


class Numbers:
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
        """Vectors were made."""
        self._add(usage)

    def failed(self) -> None:
        """An answer was begun, or not even that, and came to nothing."""
        self._failures += 1

    def _add(self, usage: Usage) -> None:
        self._prompt += usage.prompt_tokens
        self._completion += usage.completion_tokens
        self._cached += usage.cached_tokens

    def reading(self, watch: Watch) -> ModelReading:
        """All of it."""
        return ModelReading(
            state=watch.state,
            reason=watch.reason[:_REASON_CHARS],
            url=watch.url[:_NAME_CHARS],
            name=watch.name[:_NAME_CHARS],
            slots=watch.slots,
            busy=watch.places.busy,
            waiting=watch.places.waiting,
            answers=self._answers,
            failures=self._failures,
            prompt_tokens=self._prompt,
            completion_tokens=self._completion,
            cached_tokens=self._cached,
            first_token=Told(counts=list(self._first_token.counts), sum=self._first_token.sum),
        )
