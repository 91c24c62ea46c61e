"""Listens to an answer while it streams: tool calls that a model writes as text are not text.

Servers that know their model's manners turn `<tool_call>{…}</tool_call>` into calls. Others hand
it on as it is.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from common import codec
from worker.model.types import Sink, ToolCall

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_decoder = json.JSONDecoder()


class Listening:
    """A sink before the real one. What looks like a call is held back until the answer is whole."""

    def __init__(self, sink: Sink, names: Collection[str]) -> None:
        self._sink = sink
        #: Functions that may be called; of none, everything is text.
        self._names = names
        self._held = ""
        #: What was handed on, for an answer that is broken off.
        self.said = ""
        self.thought = ""

    async def text(self, delta: str) -> None:
        """A piece of the answer."""
        if not self._names:
            await self._say(delta)
            return
        self._held += delta
        await self._say_up_to(_first_doubt(self._held))

    async def reasoning(self, delta: str) -> None:
        """A piece of the thoughts before it."""
        self.thought += delta
        await self._sink.reasoning(delta)

    async def progress(self, done: int, total: int) -> None:
        """How much of the prompt the server has read."""
        await self._sink.progress(done, total)

    async def end(self, round: int) -> tuple[ToolCall, ...]:
        """The answer is whole: the calls in it, if what was held back is nothing but calls."""
        calls = _calls(self._held, self._names, round)
        if calls:
            self._held = ""
        await self._say_up_to(len(self._held))
        return calls

    async def _say_up_to(self, place: int) -> None:
        sure, self._held = self._held[:place], self._held[place:]
        if sure:
            await self._say(sure)

    async def _say(self, text: str) -> None:
        self.said += text
        await self._sink.text(text)


def _first_doubt(text: str) -> int:
    """From where on `text` is, or may become, a call."""
    found = text.find(_OPEN)
    if found >= 0:
        return found
    for length in range(min(len(_OPEN) - 1, len(text)), 0, -1):
        if text.endswith(_OPEN[:length]):
            return len(text) - length
    return len(text)


def _calls(text: str, names: Collection[str], round: int) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    rest = text.strip()
    while rest:
        if not rest.startswith(_OPEN):
            return ()
        rest = rest[len(_OPEN) :].lstrip()
        try:
            value, end = _decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return ()
        rest = rest[end:].lstrip().removeprefix(_CLOSE).lstrip()
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in names:
            return ()
        arguments = value.get("arguments", value.get("parameters", {}))
        if not isinstance(arguments, str):
            arguments = codec.dumps(arguments).decode()
        calls.append(ToolCall(f"call_{round}_{len(calls)}", name, arguments))
    return tuple(calls)
