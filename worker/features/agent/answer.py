"""One model answer in an agent run, bounded in size so that it can be saved."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.common import codec
from sluice.worker.features.model.types import Completion, Sink, ToolCall, Usage
from sluice.worker.features.tools.call import truncate_text

#: A saved step may have 64 KiB. Limits for an answer that calls tools, as JSON: the arguments of
#: all its calls, and its text.
MOST_ARGUMENT_BYTES = 32 * 1024
MOST_TEXT_BYTES = 12 * 1024
#: Calls per answer that are considered; further ones are dropped.
MOST_CALLS = 32
#: Limit of a call's id and of its name. All calls of an answer are saved as one step.
MOST_NAME_BYTES = 128


@dataclass(frozen=True)
class ModelAnswer:
    """Text of one model answer and the tool calls it asks for."""

    text: str
    finish_reason: str
    model: str
    usage: Usage = field(default_factory=Usage)
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    first_token_ms: int | None = None
    tokens_per_s: float | None = None
    #: Indexes of calls whose arguments exceeded the limit; they were replaced by `{}`.
    too_long: frozenset[int] = frozenset()
    #: Milliseconds since the start of the run, over all attempts, when the answer was complete.
    at_ms: int = 0

    @classmethod
    def of(cls, completion: Completion, text: str, calls: Iterable[ToolCall]) -> ModelAnswer:
        """Build from a completion and its calls.

        An answer with calls is cut to the limits of a saved step.
        """
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
        remaining = MOST_ARGUMENT_BYTES
        calls: list[ToolCall] = []
        too_long: set[int] = set()
        ids: set[str] = set()
        for number, call in enumerate(self.calls):
            arguments = call.arguments.encode(errors="replace").decode()
            size = len(codec.dumps(arguments))
            if size > remaining:
                too_long.add(number)
                arguments, size = "{}", 4
            remaining -= size
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
        """The saved form. Reasoning is left out because no later attempt needs it."""
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
    """Sink that forwards text to another sink but holds back text that may be a tool call.

    Some models write calls as text (`<tool_call>{…}`) instead of using the API's field.
    """

    def __init__(self, sink: Sink, names: Collection[str]) -> None:
        self._sink = sink
        #: Functions that may be called. If empty, all text is forwarded.
        self._names = names
        self._held = ""
        #: Text and reasoning forwarded so far, for an answer that is interrupted.
        self.emitted_text = ""
        self.emitted_reasoning = ""

    async def text(self, delta: str) -> None:
        if not self._names:
            await self._emit(delta)
            return
        self._held += delta
        await self._emit_up_to(_possible_call_start(self._held))

    async def reasoning(self, delta: str) -> None:
        self.emitted_reasoning += delta
        await self._sink.reasoning(delta)

    async def progress(self, done: int, total: int) -> None:
        """Forward the number of prompt tokens that the server has processed."""
        await self._sink.progress(done, total)

    async def end(self, round: int) -> tuple[ToolCall, ...]:
        """Return the calls in the held-back text.

        Text that is not entirely calls is forwarded instead.
        """
        calls = _parse_calls(self._held, self._names, round)
        if calls:
            self._held = ""
        await self._emit_up_to(len(self._held))
        return calls

    async def _emit_up_to(self, end: int) -> None:
        ready, self._held = self._held[:end], self._held[end:]
        if ready:
            await self._emit(ready)

    async def _emit(self, text: str) -> None:
        self.emitted_text += text
        await self._sink.text(text)


def _possible_call_start(text: str) -> int:
    """Index from which on `text` is, or may become, a tool call."""
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
