"""An answer while it is made, put together from its pieces."""

from __future__ import annotations

from dataclasses import dataclass

from worker.model.budget import Stopwatch
from worker.model.chunks import CallPiece, Chunk
from worker.model.errors import ModelAnswerInvalid
from worker.model.types import CANCELED, Completion, ToolCall, Usage

#: Longest answer, in characters: thoughts, text and arguments together.
MOST_CHARS = 4 * 1024 * 1024
#: Tool calls of one answer.
MOST_CALLS = 128
_STOP, _TOOL_CALLS = "stop", "tool_calls"


@dataclass
class _Call:
    id: str = ""
    name: str = ""
    arguments: str = ""


class Draft:
    """Holds what was said so far; also when nothing more comes."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.finish_reason: str | None = None
        #: Whether a piece of it was handed on: from then on nothing may be asked again.
        self.begun = False
        #: Whether there was a choice in it at all.
        self.chosen = False
        #: Pieces that said something; a server that does not count tokens gives about one each.
        self.pieces = 0
        self.usage: Usage | None = None
        self._tokens_per_s: float | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._chars = 0
        #: Tokens of the prompt, as a server tells that reports its progress.
        self._prompt = 0

    def add(self, chunk: Chunk) -> None:
        """One more piece; raises ModelAnswerInvalid where it grows beyond all bounds."""
        if chunk.says_something:
            self.pieces += 1
        if chunk.progress is not None:
            self._prompt = chunk.progress[1]
        if chunk.text:
            self._text.append(chunk.text)
        if chunk.reasoning:
            self._reasoning.append(chunk.reasoning)
        for piece in chunk.calls:
            self._add_call(piece)
        self.chosen = self.chosen or chunk.chosen
        self.finish_reason = chunk.finish_reason or self.finish_reason
        self.usage = chunk.usage or self.usage
        self._tokens_per_s = chunk.tokens_per_s or self._tokens_per_s
        self._chars += len(chunk.text) + len(chunk.reasoning)
        self._chars += sum(len(piece.arguments) for piece in chunk.calls)
        if self._chars > MOST_CHARS or len(self._calls) > MOST_CALLS:
            raise ModelAnswerInvalid(
                f"the answer has more than {MOST_CHARS} characters or {MOST_CALLS} tool calls; "
                "ask for fewer tokens (max_tokens)"
            )

    def _add_call(self, piece: CallPiece) -> None:
        call = self._whose(piece)
        call.id = call.id or piece.id
        call.name = call.name or piece.name
        call.arguments += piece.arguments

    def _whose(self, piece: CallPiece) -> _Call:
        """The call that a piece belongs to. Some servers number badly, or not at all."""
        if piece.index is None:
            found = None if piece.id or piece.name or not self._calls else self._calls[-1]
        else:
            found = self._by_index.get(piece.index)
            if found is not None and piece.id and found.id and piece.id != found.id:
                found = None
        if found is None:
            found = _Call()
            self._calls.append(found)
            if piece.index is not None:
                self._by_index[piece.index] = found
        return found

    @property
    def text(self) -> str:
        """What was said."""
        return "".join(self._text)

    def completion(self, watch: Stopwatch, *, canceled: bool = False) -> Completion:
        """The answer as it is now."""
        calls = tuple(
            ToolCall(call.id or f"call_{number}", call.name, call.arguments)
            for number, call in enumerate(self._calls)
        )
        if canceled:
            reason, calls = CANCELED, ()  # half a call is none
        else:
            reason = self.finish_reason or (_TOOL_CALLS if calls else _STOP)
        usage = self.usage or Usage(self._prompt, self.pieces)
        first_s = watch.first_token_s
        return Completion(
            text=self.text,
            finish_reason=reason,
            model=self.model,
            usage=usage,
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            first_token_ms=None if first_s is None else round(first_s * 1000),
            ms=watch.elapsed_ms,
            tokens_per_s=self._speed(watch, usage),
        )

    def _speed(self, watch: Stopwatch, usage: Usage) -> float | None:
        if self._tokens_per_s is not None:
            return round(self._tokens_per_s, 2)
        spent_s = watch.since_first_token_s
        # The first token has taken no time of its own that could be told.
        if not spent_s or usage.completion_tokens < 2:
            return None
        return round((usage.completion_tokens - 1) / spent_s, 2)
