"""Answers of the scripted model server: lists of steps, chosen by a test or by the prompt."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

#: Seconds between two tokens of a slow answer.
SLOWLY_S = 0.05
DIMENSIONS = 32


@dataclass(frozen=True)
class Cut:
    """Ends the connection here: cleanly, as far as TCP is concerned, or with a reset."""

    reset: bool = False


#: A delta; seconds to wait; an event to wait for; raw bytes of the stream; the end.
Step = dict[str, Any] | float | asyncio.Event | bytes | Cut


@dataclass(frozen=True)
class Answer:
    """One answer to one completion request."""

    steps: Sequence[Step] = ()
    #: None: the stream ends without a finish reason.
    finish: str | None = "stop"
    #: None: counted; an empty one is not sent.
    usage: dict[str, Any] | None = None
    #: A complete body instead of a stream, with its status and media type.
    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    #: Seconds, or an event, to wait for before the status line is sent.
    before: float | asyncio.Event = 0.0
    #: Whether `[DONE]` is sent.
    done: bool = True
    #: False for a server that ignores `stream` and answers with one body.
    streams: bool = True
    #: llama-server's report of its speed.
    timings: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The complete text."""
        return "".join(step.get("content") or "" for step in self.steps if isinstance(step, dict))

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The complete tool calls."""
        made: dict[int, dict[str, Any]] = {}
        for step in self.steps:
            if isinstance(step, dict):
                for piece in step.get("tool_calls", ()):
                    call = made.setdefault(
                        piece["index"],
                        {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
                    )
                    call["id"] += piece.get("id", "")
                    for key in ("name", "arguments"):
                        call["function"][key] += piece.get("function", {}).get(key, "")
        return list(made.values())


def tokens(text: str, pause_s: float = 0.0) -> list[Step]:
    """The words of a text, with a pause after each."""
    steps: list[Step] = []
    for word in re.findall(r"\s*\S+\s*$|\s*\S+|\s+$", text):
        steps.append({"content": word})
        if pause_s:
            steps.append(pause_s)
    return steps


def text_answer(text: str, pause_s: float = 0.0, **more: Any) -> Answer:
    """An answer with a text."""
    return Answer(tokens(text, pause_s), **more)


def tool_call_answer(*calls: tuple[str, Any], text: str = "", **more: Any) -> Answer:
    """An answer with tool calls (name and arguments); the arguments are sent in pieces."""
    steps = tokens(text)
    for index, (name, arguments) in enumerate(calls):
        body_answer = arguments if isinstance(arguments, str) else json.dumps(arguments)
        half = len(body_answer) // 2
        steps.append(_piece(index, body_answer[:half], id=f"call_{index}", name=name))
        steps.append(_piece(index, body_answer[half:]))
    return Answer(steps, **{"finish": "tool_calls", **more})


def _piece(index: int, arguments: str, id: str = "", name: str = "") -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": name} if name else {})}
    piece = {"index": index, "function": function}
    if id:
        piece |= {"id": id, "type": "function"}
    return {"tool_calls": [piece]}


def body_answer(body: bytes | object, status: int = 200, **more: Any) -> Answer:
    """An answer with one body: bytes as they are, anything else as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(body=raw, status=status, **more)


def error_answer(status: int, message: str = "no", **more: Any) -> Answer:
    """An error in the format of the OpenAI API."""
    error = {"error": {"code": status, "message": message, "type": "invalid_request_error"}}
    return body_answer(error, status, **more)


def answer_from_prompt(request: dict[str, Any]) -> Answer:
    """The answer that a prompt asks for: see `tests.support.model.server`."""
    messages = request.get("messages") or [{}]
    prompt = next(
        (str(m.get("content")) for m in reversed(messages) if m.get("role") == "user"), ""
    )
    if messages[-1].get("role") == "tool":
        return text_answer(f"The tool said: {messages[-1].get('content')}")
    slowly = SLOWLY_S if "slowly" in prompt else 0.0
    if found := re.search(r"count to (\d+)", prompt):
        answer = text_answer(" ".join(map(str, range(1, int(found[1]) + 1))), slowly)
    elif (found := re.search(r"call (\w+) with (\{.*\})", prompt, re.DOTALL)) and request.get(
        "tools"
    ):
        answer = tool_call_answer((found[1], found[2]))
    elif found := re.search(r"say exactly:\s*(.*)", prompt, re.DOTALL):
        answer = text_answer(found[1], slowly)
    elif found := re.search(r"fail with (\d+)", prompt):
        answer = error_answer(int(found[1]), f"asked to fail with {found[1]}")
    else:
        answer = text_answer(f"You said: {prompt}", slowly)
    return _truncate(answer, request.get("max_tokens"))


def _truncate(answer: Answer, most: Any) -> Answer:
    if not isinstance(most, int) or answer.body is not None:
        return answer
    kept: list[Step] = []
    for step in answer.steps:
        if isinstance(step, dict):
            if most == 0:
                return replace(answer, steps=kept, finish="length")
            most -= 1
        kept.append(step)
    return answer


def vector_of(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """A unit vector; texts with the same words have similar vectors."""
    vector = [0.0] * dimensions
    for word in re.findall(r"\w+", text.lower()):
        digest = hashlib.sha256(word.encode()).digest()
        vector[digest[0] % dimensions] += 1.0 if digest[1] % 2 else -1.0
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector] if length else [1.0] + [0.0] * (dimensions - 1)
