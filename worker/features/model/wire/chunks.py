"""What a model server says, taken apart: chunks of a stream, or an answer in one piece."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from common import codec
from worker.features.model.errors import ModelAnswerInvalid, sanitize_text
from worker.features.model.types import Usage

#: The end of a stream, where other events have JSON.
STREAM_END = b"[DONE]"
#: Where thoughts are: llama-server, vLLM and DeepSeek; Ollama and newer vLLM.
_THOUGHTS = ("reasoning_content", "reasoning")


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a tool call; `index` tells whose, where the server says so."""

    index: int | None
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ServerError:
    """What a server says that went wrong, in the middle of a stream or as its whole answer."""

    message: str
    #: As HTTP has it; 0 where the server does not say.
    code: int = 0


@dataclass(frozen=True)
class Chunk:
    """What one event of a stream brings; most bring a piece of text and nothing else."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    #: Tokens a second, as llama-server measured it.
    tokens_per_s: float | None = None
    #: Tokens of the prompt that it has read, and all.
    progress: tuple[int, int] | None = None
    model: str = ""
    error: ServerError | None = None
    #: Whether it holds a choice at all.
    has_choice: bool = field(default=False)

    @property
    def has_content(self) -> bool:
        """Whether the answer goes on with it."""
        return bool(self.text or self.reasoning or self.calls)


def parse_json(raw: bytes) -> Any:
    """A JSON value; raises ModelAnswerInvalid with the beginning of what is none."""
    try:
        return codec.loads(raw)
    except ValueError:
        pass
    try:  # half an emoji in an escape is no JSON to some
        return json.loads(raw)
    except (ValueError, RecursionError):
        beginning = sanitize_text(codec.decode_text(raw[:120]))
        raise ModelAnswerInvalid(
            f"the model server said something that is no JSON: {beginning!r}"
        ) from None


def parse_chunk(value: Any) -> Chunk:
    """A chunk of a stream, or a whole answer: they differ in the name of one member."""
    if not isinstance(value, dict):
        raise _invalid_answer("a chunk that is no object")
    error = find_error(value)
    if error is not None:
        return Chunk(error=error)
    choices = value.get("choices")
    if choices is None:
        choices = []
    if not isinstance(choices, list):
        raise _invalid_answer("choices that are no list")
    choice = next((each for each in choices if _is_first(each)), None)
    rest = _parse_metadata(value)
    if choice is None:
        return Chunk(**rest)
    said = choice.get("delta")
    if said is None:
        said = choice.get("message")
    if said is None:
        said = {}
    if not isinstance(said, dict):
        raise _invalid_answer("a delta that is no object")
    reason = choice.get("finish_reason")
    thoughts = next((said[name] for name in _THOUGHTS if said.get(name)), None)
    return Chunk(
        text=_text(said.get("content")),
        reasoning=_text(thoughts),
        calls=_calls(said.get("tool_calls")),
        finish_reason=reason if isinstance(reason, str) and reason else None,
        has_choice=True,
        **rest,
    )


def find_error(value: Any, secret: str = "") -> ServerError | None:
    """The error that stands where an answer should be; None where there is none."""
    return parse_error(value, secret) if isinstance(value, dict) and value.get("error") else None


def parse_rows(value: Any) -> list[dict[str, Any]] | None:
    """The objects of a list, of models or of vectors; None for what is none."""
    rows = value.get("data") if isinstance(value, dict) else None
    whole = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    return rows if whole else None


def parse_error(value: Any, secret: str = "") -> ServerError:
    """The error in an answer, whatever its shape."""
    error = value.get("error") if isinstance(value, dict) else value
    if isinstance(error, dict):
        code = error.get("code")
        message = error.get("message") or error.get("detail") or error
        return ServerError(sanitize_text(message, secret), code if isinstance(code, int) else 0)
    if not error and isinstance(value, dict):
        error = value.get("detail") or value.get("message") or value
    return ServerError(sanitize_text(error, secret))


def _parse_metadata(value: dict[str, Any]) -> dict[str, Any]:
    """What stands beside the choices. Numbers that are none are not worth an answer."""
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
    """What an answer cost, as far as the server says."""
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
    """We ask for one answer; a server that gives several is not obeyed."""
    if not isinstance(choice, dict):
        raise _invalid_answer("a choice that is no object")
    return choice.get("index") in (0, None)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # parts, as requests have them
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    raise _invalid_answer("text that is none")


def _calls(value: Any) -> tuple[ToolCallDelta, ...]:
    if not value:
        return ()
    if not isinstance(value, list):
        raise _invalid_answer("tool calls that are no list")
    return tuple(_call(piece) for piece in value)


def _call(piece: Any) -> ToolCallDelta:
    function = piece.get("function") or {} if isinstance(piece, dict) else None
    if not isinstance(function, dict):
        raise _invalid_answer("a tool call that is no object")
    index, given = piece.get("index"), function.get("arguments")
    if given is None:
        arguments = ""
    else:  # Ollama's own dialect has an object here
        arguments = given if isinstance(given, str) else codec.dumps(given).decode()
    return ToolCallDelta(
        index if isinstance(index, int) else None,
        str(piece.get("id") or ""),
        str(function.get("name") or ""),
        arguments,
    )


def _invalid_answer(what: str) -> ModelAnswerInvalid:
    return ModelAnswerInvalid(
        f"the model server sent {what}; does MODEL_URL lead to an OpenAI-compatible server?"
    )


#: An event holds a token or two. One this long is a mistake, or an attack.
MOST_EVENT_BYTES = 1024 * 1024

_DATA = b"data"
#: llama-server has sent errors as a field of their own.
_ERROR = b"error"


class SseParser:
    """Takes bytes, gives the data of whole events; comments only keep a line open."""

    def __init__(self, most_bytes: int = MOST_EVENT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """What has become whole; raises ModelAnswerInvalid for an event that is too long."""
        if self._after_cr and data:  # a line break that was cut in two is one
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
        """The wire has ended: what was left without an empty line after it."""
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
    """The lines of `data`; the last one is what has no end yet."""
    lines = data.splitlines()
    if not data or data[-1:] in (b"\n", b"\r"):
        lines.append(b"")
    return lines
