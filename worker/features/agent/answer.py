"""One answer of the model in an agent's run, of a size that can be saved."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from common import codec
from worker.features.model.types import Completion, Sink, ToolCall, Usage
from worker.features.tools.call import truncate_text

#: A saved step has 64 KiB. Of an answer that calls tools, so much is the calls' arguments, and so
#: much its text; as JSON.
MOST_ARGUMENT_BYTES = 32 * 1024
MOST_TEXT_BYTES = 12 * 1024
#: Calls of one answer that are looked at.
MOST_CALLS = 32
#: Bytes of a call's id and of its name: all calls of an answer are saved as one step.
MOST_NAME_BYTES = 128


@dataclass(frozen=True)
class ModelAnswer:
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
    def of(cls, completion: Completion, text: str, calls: Iterable[ToolCall]) -> ModelAnswer:
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

    def _bounded(self) -> ModelAnswer:
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
            call_id = _clip_name(call.id) or f"call_{number}"
            if call_id in ids:
                call_id = f"{call_id}_{number}"
            ids.add(call_id)
            calls.append(ToolCall(call_id, _clip_name(call.name), arguments))
        text = self.text.encode(errors="replace").decode()
        if len(codec.dumps(text)) > MOST_TEXT_BYTES:
            text = truncate_text(text, MOST_TEXT_BYTES)
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
    def from_json(cls, value: dict[str, Any]) -> ModelAnswer:
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


def _clip_name(text: str) -> str:
    return _printable(text).encode(errors="replace")[:MOST_NAME_BYTES].decode(errors="ignore")


def _printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable())


_CALL_OPEN, _CALL_CLOSE = "<tool_call>", "</tool_call>"
_decoder = json.JSONDecoder()


class ToolCallSink:
    """A sink before the real one. What looks like a call is held back until the answer is whole."""

    def __init__(self, sink: Sink, names: Collection[str]) -> None:
        self._sink = sink
        #: Functions that may be called; of none, everything is text.
        self._names = names
        self._held = ""
        #: What was handed on, for an answer that is broken off.
        self.emitted_text = ""
        self.emitted_reasoning = ""

    async def text(self, delta: str) -> None:
        if not self._names:
            await self._emit(delta)
            return
        self._held += delta
        await self._emit_up_to(_possible_call_start(self._held))

    async def reasoning(self, delta: str) -> None:
        """A piece of the thoughts before it."""
        self.emitted_reasoning += delta
        await self._sink.reasoning(delta)

    async def progress(self, done: int, total: int) -> None:
        """How much of the prompt the server has read."""
        await self._sink.progress(done, total)

    async def end(self, round: int) -> tuple[ToolCall, ...]:
        """The answer is whole: the calls in it, if what was held back is nothing but calls."""
        calls = _parse_calls(self._held, self._names, round)
        if calls:
            self._held = ""
        await self._emit_up_to(len(self._held))
        return calls

    async def _emit_up_to(self, place: int) -> None:
        sure, self._held = self._held[:place], self._held[place:]
        if sure:
            await self._emit(sure)

    async def _emit(self, text: str) -> None:
        self.emitted_text += text
        await self._sink.text(text)


def _possible_call_start(text: str) -> int:
    """From where on `text` is, or may become, a call."""
    found = text.find(_CALL_OPEN)
    if found >= 0:
        return found
    for length in range(min(len(_CALL_OPEN) - 1, len(text)), 0, -1):
        if text.endswith(_CALL_OPEN[:length]):
            return len(text) - length
    return len(text)


def _parse_calls(text: str, names: Collection[str], round: int) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    rest = text.strip()
    while rest:
        if not rest.startswith(_CALL_OPEN):
            return ()
        rest = rest[len(_CALL_OPEN) :].lstrip()
        try:
            value, end = _decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return ()
        rest = rest[end:].lstrip().removeprefix(_CALL_CLOSE).lstrip()
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in names:
            return ()
        arguments = value.get("arguments", value.get("parameters", {}))
        if not isinstance(arguments, str):
            arguments = codec.dumps(arguments).decode()
        calls.append(ToolCall(f"call_{round}_{len(calls)}", name, arguments))
    return tuple(calls)
