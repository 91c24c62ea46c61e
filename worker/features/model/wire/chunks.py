"""Parses the stream of a model server into chunks; also answers that are not streamed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from sluice.common import codec
from sluice.worker.features.model.errors import ModelAnswerInvalid, sanitize_text
from sluice.worker.features.model.types import Usage

#: Marks the end of a stream.
STREAM_END = b"[DONE]"
#: Members with the reasoning: llama-server, vLLM and DeepSeek; Ollama and newer vLLM.
_THOUGHTS = ("reasoning_content", "reasoning")


@dataclass(frozen=True)
class ToolCallDelta:
    """A part of a tool call; `index` says of which one, if the server sends it."""

    index: int | None
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ServerError:
    """An error reported by the server, within a stream or as the whole response."""

    message: str
    #: HTTP status; 0 if the server does not report one.
    code: int = 0


@dataclass(frozen=True)
class Chunk:
    """Content of one event of a stream."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    #: Tokens per second as measured by llama-server.
    tokens_per_s: float | None = None
    #: Prompt tokens processed, and in total.
    progress: tuple[int, int] | None = None
    model: str = ""
    error: ServerError | None = None
    #: True if the event has a choice.
    has_choice: bool = field(default=False)

    @property
    def has_content(self) -> bool:
        """True if it is a part of the answer."""
        return bool(self.text or self.reasoning or self.calls)


def parse_json(raw: bytes) -> Any:
    """Parse JSON; raises ModelAnswerInvalid with the beginning of invalid text."""
    try:
        return codec.loads(raw)
    except ValueError:
        pass
    try:  # some parsers reject unpaired surrogates in escapes
        return json.loads(raw)
    except (ValueError, RecursionError):
        beginning = sanitize_text(codec.decode_text(raw[:120]))
        raise ModelAnswerInvalid(f"the model server sent invalid JSON: {beginning!r}") from None


def parse_chunk(value: Any) -> Chunk:
    """Parse a chunk of a stream or a whole answer; they differ in the name of one member."""
    if not isinstance(value, dict):
        raise _invalid_answer("a chunk that is not an object")
    error = find_error(value)
    if error is not None:
        return Chunk(error=error)
    choices = value.get("choices")
    if choices is None:
        choices = []
    if not isinstance(choices, list):
        raise _invalid_answer("choices that are not a list")
    choice = next((each for each in choices if _is_first(each)), None)
    rest = _parse_metadata(value)
    if choice is None:
        return Chunk(**rest)
    delta = choice.get("delta")
    if delta is None:
        delta = choice.get("message")
    if delta is None:
        delta = {}
    if not isinstance(delta, dict):
        raise _invalid_answer("a delta that is not an object")
    reason = choice.get("finish_reason")
    thoughts = next((delta[name] for name in _THOUGHTS if delta.get(name)), None)
    return Chunk(
        text=_text(delta.get("content")),
        reasoning=_text(thoughts),
        calls=_calls(delta.get("tool_calls")),
        finish_reason=reason if isinstance(reason, str) and reason else None,
        has_choice=True,
        **rest,
    )


def find_error(value: Any, secret: str = "") -> ServerError | None:
    """The error in a response, or None."""
    return parse_error(value, secret) if isinstance(value, dict) and value.get("error") else None


def parse_rows(value: Any) -> list[dict[str, Any]] | None:
    """The objects in `data`, of models or vectors; None if they are missing or invalid."""
    rows = value.get("data") if isinstance(value, dict) else None
    whole = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    return rows if whole else None


def parse_error(value: Any, secret: str = "") -> ServerError:
    """The error in a response, in any of the known formats."""
    error = value.get("error") if isinstance(value, dict) else value
    if isinstance(error, dict):
        code = error.get("code")
        message = error.get("message") or error.get("detail") or error
        return ServerError(sanitize_text(message, secret), code if isinstance(code, int) else 0)
    if not error and isinstance(value, dict):
        error = value.get("detail") or value.get("message") or value
    return ServerError(sanitize_text(error, secret))


def _parse_metadata(value: dict[str, Any]) -> dict[str, Any]:
    """Members apart from the choices. Invalid numbers are ignored."""
    model = value.get("model")
    timings = value.get("timings")
    progress = value.get("prompt_progress")
    return {
        "usage": parse_usage(value.get("usage"), timings),
        "tokens_per_s": _speed(timings),
        "progress": _progress(progress),
        "model": model if isinstance(model, str) else "",
    }


def parse_usage(usage: Any, timings: Any = None) -> Usage | None:
    """Token usage, if the server reports it."""
    if isinstance(usage, dict):
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else 0
        return Usage(
            _natural(usage.get("prompt_tokens")),
            _natural(usage.get("completion_tokens")),
            _natural(cached),
        )
    if isinstance(timings, dict):
        cached = _natural(timings.get("cache_n"))
        prompt = _natural(timings.get("prompt_n")) + cached
        return Usage(prompt, _natural(timings.get("predicted_n")), cached)
    return None


def _progress(value: Any) -> tuple[int, int] | None:
    if not isinstance(value, dict):
        return None
    total = _natural(value.get("total"))
    return (min(_natural(value.get("processed")), total), total) if total else None


def _speed(timings: Any) -> float | None:
    speed = timings.get("predicted_per_second") if isinstance(timings, dict) else None
    return float(speed) if isinstance(speed, (int, float)) and 0 < speed < 1e9 else None


def _natural(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 53 else 0


def _is_first(choice: Any) -> bool:
    """Only one answer is requested; further ones are ignored."""
    if not isinstance(choice, dict):
        raise _invalid_answer("a choice that is not an object")
    return choice.get("index") in (0, None)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # parts, as in requests
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    raise _invalid_answer("content that is not text")


def _calls(value: Any) -> tuple[ToolCallDelta, ...]:
    if not value:
        return ()
    if not isinstance(value, list):
        raise _invalid_answer("tool calls that are not a list")
    return tuple(_call(piece) for piece in value)


def _call(piece: Any) -> ToolCallDelta:
    function = piece.get("function") or {} if isinstance(piece, dict) else None
    if not isinstance(function, dict):
        raise _invalid_answer("a tool call that is not an object")
    index, raw_arguments = piece.get("index"), function.get("arguments")
    if raw_arguments is None:
        arguments = ""
    else:  # an object in Ollama's native API
        arguments = (
            raw_arguments if isinstance(raw_arguments, str) else codec.dumps(raw_arguments).decode()
        )
    return ToolCallDelta(
        index if isinstance(index, int) else None,
        str(piece.get("id") or ""),
        str(function.get("name") or ""),
        arguments,
    )


def _invalid_answer(what: str) -> ModelAnswerInvalid:
    return ModelAnswerInvalid(
        f"the model server sent {what}; is MODEL_URL an OpenAI-compatible server?"
    )


#: Limit of an event, which usually holds a token or two.
MOST_EVENT_BYTES = 1024 * 1024

_DATA = b"data"
#: llama-server sends errors in a separate field.
_ERROR = b"error"


class SseParser:
    """Incremental SSE parser: takes bytes, returns the data of complete events."""

    def __init__(self, most_bytes: int = MOST_EVENT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """Data of the events completed by `data`.

        Raises ModelAnswerInvalid for an event that is too long.
        """
        if self._after_cr and data:  # CR LF split between two reads is one line break
            data = data[1:] if data[:1] == b"\n" else data
            self._after_cr = False
        *lines, self._rest = _lines(self._rest + data)
        if lines and data.endswith(b"\r"):
            self._after_cr = True
        events = []
        for line in lines:
            event = self._line(line)
            if event is not None:
                events.append(event)
        self._check(len(self._rest))
        return events

    def end(self) -> list[bytes]:
        """Data of the last event, if the stream ended without an empty line."""
        rest, self._rest = self._rest, b""
        events = [self._line(rest)] if rest else []
        events.append(self._line(b""))
        return [event for event in events if event is not None]

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data, self._size = self._data, [], 0
            return b"\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name in (_DATA, _ERROR):
            value = value[1:] if value[:1] == b" " else value
            if name == _ERROR:
                value = b'{"error":' + value + b"}"
            self._data.append(value)
            self._size += len(value)
            self._check()
        return None

    def _check(self, unfinished: int = 0) -> None:
        if self._size + unfinished > self._most_bytes:
            raise ModelAnswerInvalid(
                f"the model server sent an event of more than {self._most_bytes} bytes"
            )


def _lines(data: bytes) -> list[bytes]:
    """The lines of `data`; the last item is the incomplete line."""
    lines = data.splitlines()
    if not data or data[-1:] in (b"\n", b"\r"):
        lines.append(b"")
    return lines
