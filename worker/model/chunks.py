"""What a model server says, taken apart: chunks of a stream, or an answer in one piece."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from common import codec
from worker.model.errors import ModelAnswerInvalid, quoted
from worker.model.types import Usage

#: The end of a stream, where other events have JSON.
DONE = b"[DONE]"
#: Where thoughts are: llama-server, vLLM and DeepSeek; Ollama and newer vLLM.
_THOUGHTS = ("reasoning_content", "reasoning")


@dataclass(frozen=True)
class CallPiece:
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
    calls: tuple[CallPiece, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    #: Tokens a second, as llama-server measured it.
    tokens_per_s: float | None = None
    #: Tokens of the prompt that it has read, and all.
    progress: tuple[int, int] | None = None
    model: str = ""
    error: ServerError | None = None
    #: Whether it holds a choice at all.
    chosen: bool = field(default=False)

    @property
    def says_something(self) -> bool:
        """Whether the answer goes on with it."""
        return bool(self.text or self.reasoning or self.calls)


def parse(raw: bytes) -> Any:
    """A JSON value; raises ModelAnswerInvalid with the beginning of what is none."""
    try:
        return codec.loads(raw)
    except ValueError:
        pass
    try:  # half an emoji in an escape is no JSON to some
        return json.loads(raw)
    except (ValueError, RecursionError):
        beginning = quoted(codec.text(raw[:120]))
        raise ModelAnswerInvalid(
            f"the model server said something that is no JSON: {beginning!r}"
        ) from None


def chunk_of(value: Any) -> Chunk:
    """A chunk of a stream, or a whole answer: they differ in the name of one member."""
    if not isinstance(value, dict):
        raise _strange("a chunk that is no object")
    error = failure_in(value)
    if error is not None:
        return Chunk(error=error)
    choices = value.get("choices")
    if choices is None:
        choices = []
    if not isinstance(choices, list):
        raise _strange("choices that are no list")
    choice = next((each for each in choices if _is_first(each)), None)
    rest = _besides(value)
    if choice is None:
        return Chunk(**rest)
    said = choice.get("delta")
    if said is None:
        said = choice.get("message")
    if said is None:
        said = {}
    if not isinstance(said, dict):
        raise _strange("a delta that is no object")
    reason = choice.get("finish_reason")
    thoughts = next((said[name] for name in _THOUGHTS if said.get(name)), None)
    return Chunk(
        text=_text(said.get("content")),
        reasoning=_text(thoughts),
        calls=_calls(said.get("tool_calls")),
        finish_reason=reason if isinstance(reason, str) and reason else None,
        chosen=True,
        **rest,
    )


def failure_in(value: Any, secret: str = "") -> ServerError | None:
    """The error that stands where an answer should be; None where there is none."""
    return error_in(value, secret) if isinstance(value, dict) and value.get("error") else None


def rows_in(value: Any) -> list[dict[str, Any]] | None:
    """The objects of a list, of models or of vectors; None for what is none."""
    rows = value.get("data") if isinstance(value, dict) else None
    whole = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    return rows if whole else None


def error_in(value: Any, secret: str = "") -> ServerError:
    """The error in an answer, whatever its shape."""
    error = value.get("error") if isinstance(value, dict) else value
    if isinstance(error, dict):
        code = error.get("code")
        message = error.get("message") or error.get("detail") or error
        return ServerError(quoted(message, secret), code if isinstance(code, int) else 0)
    if not error and isinstance(value, dict):
        error = value.get("detail") or value.get("message") or value
    return ServerError(quoted(error, secret))


def _besides(value: dict[str, Any]) -> dict[str, Any]:
    """What stands beside the choices. Numbers that are none are not worth an answer."""
    model = value.get("model")
    timings = value.get("timings")
    progress = value.get("prompt_progress")
    return {
        "usage": usage_of(value.get("usage"), timings),
        "tokens_per_s": _speed(timings),
        "progress": _progress(progress),
        "model": model if isinstance(model, str) else "",
    }


def usage_of(usage: Any, timings: Any = None) -> Usage | None:
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
        raise _strange("a choice that is no object")
    return choice.get("index") in (0, None)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # parts, as requests have them
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    raise _strange("text that is none")


def _calls(value: Any) -> tuple[CallPiece, ...]:
    if not value:
        return ()
    if not isinstance(value, list):
        raise _strange("tool calls that are no list")
    return tuple(_call(piece) for piece in value)


def _call(piece: Any) -> CallPiece:
    function = piece.get("function") or {} if isinstance(piece, dict) else None
    if not isinstance(function, dict):
        raise _strange("a tool call that is no object")
    index, given = piece.get("index"), function.get("arguments")
    if given is None:
        arguments = ""
    else:  # Ollama's own dialect has an object here
        arguments = given if isinstance(given, str) else codec.dumps(given).decode()
    return CallPiece(
        index if isinstance(index, int) else None,
        str(piece.get("id") or ""),
        str(function.get("name") or ""),
        arguments,
    )


def _strange(what: str) -> ModelAnswerInvalid:
    return ModelAnswerInvalid(
        f"the model server sent {what}; does MODEL_URL lead to an OpenAI-compatible server?"
    )
