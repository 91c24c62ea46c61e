"""One answer of the model in an agent's run, of a size that can be saved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from common import codec
from worker.model.types import Completion, ToolCall, Usage
from worker.tools.output import cut

#: A saved step has 64 KiB. Of an answer that calls tools, so much is the calls' arguments, and so
#: much its text; as JSON.
MOST_ARGUMENT_BYTES = 32 * 1024
MOST_TEXT_BYTES = 12 * 1024
#: Calls of one answer that are looked at.
MOST_CALLS = 32
#: Bytes of a call's id and of its name: all calls of an answer are saved as one step.
LONGEST_WORD = 128


@dataclass(frozen=True)
class Answer:
    """What the model said, and which tools it wants called."""

    text: str
    finish_reason: str
    model: str
    usage: Usage = field(default_factory=Usage)
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    first_token_ms: int | None = None
    tokens_per_s: float | None = None
    #: Calls whose arguments were too long to be looked at, by their number.
    too_long: frozenset[int] = frozenset()
    #: Milliseconds the run had taken when it was there, over all attempts.
    at_ms: int = 0

    @classmethod
    def of(cls, completion: Completion, text: str, calls: Iterable[ToolCall]) -> Answer:
        """A completion whose calls are known. One that has any is cut to what can be saved."""
        whole = cls(
            text=text,
            finish_reason=completion.finish_reason,
            model=completion.model,
            usage=completion.usage,
            reasoning=completion.reasoning,
            calls=tuple(calls)[:MOST_CALLS],
            first_token_ms=completion.first_token_ms,
            tokens_per_s=completion.tokens_per_s,
        )
        return whole._bounded() if whole.calls else whole

    def _bounded(self) -> Answer:
        room = MOST_ARGUMENT_BYTES
        calls: list[ToolCall] = []
        too_long: set[int] = set()
        ids: set[str] = set()
        for number, call in enumerate(self.calls):
            arguments = call.arguments.encode(errors="replace").decode()
            size = len(codec.dumps(arguments))
            if size > room:
                too_long.add(number)
                arguments, size = "{}", 4
            room -= size
            call_id = _short(call.id) or f"call_{number}"
            if call_id in ids:
                call_id = f"{call_id}_{number}"
            ids.add(call_id)
            calls.append(ToolCall(call_id, _short(call.name), arguments))
        text = self.text.encode(errors="replace").decode()
        if len(codec.dumps(text)) > MOST_TEXT_BYTES:
            text = cut(text, MOST_TEXT_BYTES)
        return replace(self, text=text, calls=tuple(calls), too_long=frozenset(too_long))

    def to_json(self) -> dict[str, Any]:
        """As it is saved: all but its thoughts, which nobody asks for again."""
        usage = self.usage
        return {
            "text": self.text,
            "why": self.finish_reason,
            "model": self.model,
            "usage": [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens],
            "calls": [[call.id, call.name, call.arguments] for call in self.calls],
            "too_long": sorted(self.too_long),
            "first_token_ms": self.first_token_ms,
            "at_ms": self.at_ms,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Answer:
        """As it was saved."""
        return cls(
            text=value["text"],
            finish_reason=value["why"],
            model=value["model"],
            usage=Usage(*value["usage"]),
            calls=tuple(ToolCall(*call) for call in value["calls"]),
            too_long=frozenset(value["too_long"]),
            first_token_ms=value["first_token_ms"],
            at_ms=value["at_ms"],
        )


def _short(text: str) -> str:
    return _printable(text).encode(errors="replace")[:LONGEST_WORD].decode(errors="ignore")


def _printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable())
