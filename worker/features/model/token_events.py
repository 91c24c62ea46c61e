"""Turns the chunks of an answer into events: the first at once, later ones in batches."""

from __future__ import annotations

import asyncio
import unicodedata
from types import TracebackType
from typing import Any

from sluice.common.contracts.jobs import EventType
from sluice.common.contracts.models import DeltaField, HandlerEventType
from sluice.worker.errors import AttemptLost
from sluice.worker.execution.context import JobContext, emit_progress
from sluice.worker.features.model.types import Completion, ToolCall

#: Shortest time between two events of an answer; text that arrives meanwhile is batched.
COALESCE_S = 0.04
#: Waiting text of this size is sent at once.
COALESCE_BYTES = 512
#: A sentence of at least this size is sent as soon as it ends.
SENTENCE_BYTES = 32
#: Most text of one event. JSON may need six bytes for one, and an event may have 256 KiB.
MOST_BYTES = 8192
#: Shortest time between two progress reports on the prompt.
PROGRESS_S = 0.1

_SENTENCE_ENDS = frozenset(".!?…。！？\n")
_JOINERS = frozenset("\u200d\ufe0e\ufe0f")
_MESSAGE, _REASONING = EventType.MESSAGE, HandlerEventType.REASONING
_USAGE = HandlerEventType.USAGE
_DELTA, _N, _ATTEMPT = DeltaField.DELTA, DeltaField.N, DeltaField.ATTEMPT


def fix_surrogates(text: str) -> str:
    """Make `text` encodable as JSON: joins surrogate pairs and replaces unpaired surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class TokenStream:
    """Sink that emits the answers of an attempt as events. Only one task may write to it.

    Use it with `async with`: after the block, no text is pending and no timer runs. The deltas of
    an attempt's last round, joined, are the text of its answer.
    """

    def __init__(self, context: JobContext, step: str) -> None:
        self._context = context
        self._step = step
        self._loop = asyncio.get_running_loop()
        self._channel = _MESSAGE
        self._waiting = ""
        #: High surrogate at the end of the last delta; the low one may follow.
        self._half = ""
        self._written = {_MESSAGE: 0, _REASONING: 0}
        self._round = 1
        #: Channels that have emitted in this round.
        self._begun: set[str] = set()
        self._last_s = self._last_progress_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> TokenStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.flush()
        else:
            self.close()

    # -- Sink -------------------------------------------------------------------------------------

    async def text(self, delta: str) -> None:
        await self._add(_MESSAGE, delta)

    async def reasoning(self, delta: str) -> None:
        await self._add(_REASONING, delta)

    async def progress(self, done: int, total: int) -> None:
        """Report the prompt tokens that the server has processed."""
        now = self._loop.time()
        if done < total and now - self._last_progress_s < PROGRESS_S:
            return
        self._last_progress_s = now
        await self.flush()
        await emit_progress(self._context, self._step, done, total)

    # -- for handlers -----------------------------------------------------------------------------

    async def usage(self, completion: Completion) -> None:
        """Emit the token usage of a complete answer."""
        await self.flush()
        data = {**usage_view(completion), "ms": completion.ms, _ATTEMPT: self._context.attempt}
        await self._context.emit(_USAGE, data, step=self._step)

    async def next_round(self) -> None:
        """Start a new answer, because the model is asked again."""
        await self.flush()
        self._round += 1
        self._begun.clear()

    async def flush(self) -> None:
        self._flush_half()
        await self._send()

    def close(self) -> None:
        """Send the pending text as far as possible without waiting, and stop."""
        self._flush_half()
        self._offer()
        self._disarm()
        self._waiting = ""

    # -- sending ----------------------------------------------------------------------------------

    async def _add(self, channel: str, delta: str) -> None:
        if channel != self._channel:
            await self.flush()
            self._channel = channel
        delta = self._whole(delta)
        if not delta:
            return
        self._waiting += delta
        if self._due(delta):
            await self._send()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._last_s + COALESCE_S, self._on_time)

    def _whole(self, delta: str) -> str:
        """`delta` without a trailing high surrogate, which is kept for the next delta."""
        delta, self._half = self._half + delta, ""
        if delta and "\ud800" <= delta[-1] <= "\udbff":
            delta, self._half = delta[:-1], delta[-1]
        return fix_surrogates(delta)

    def _flush_half(self) -> None:
        half, self._half = self._half, ""
        self._waiting += fix_surrogates(half)

    def _due(self, delta: str) -> bool:
        if self._channel not in self._begun:
            return True
        if self._loop.time() - self._last_s >= COALESCE_S:
            return True
        waiting_bytes = len(self._waiting.encode())
        if waiting_bytes >= COALESCE_BYTES:
            return True
        ends = delta.rstrip(" ")[-1:] in _SENTENCE_ENDS
        return ends and waiting_bytes >= SENTENCE_BYTES

    async def _send(self) -> None:
        self._disarm()
        while self._waiting:
            piece = _first_piece(self._waiting)
            await self._context.emit(self._channel, self._data(piece), step=self._step)
            self._sent(piece)

    def _on_time(self) -> None:
        self._timer = None
        self._offer()
        if self._waiting:  # Redis is slow
            self._timer = self._loop.call_later(COALESCE_S, self._on_time)

    def _offer(self) -> None:
        try:
            while self._waiting:
                piece = _first_piece(self._waiting)
                if not self._context.try_emit(self._channel, self._data(piece), step=self._step):
                    return
                self._sent(piece)
        except AttemptLost:  # the next write raises it
            self._waiting = ""

    def _data(self, piece: str) -> dict[str, object]:
        data: dict[str, object] = {
            _DELTA: piece,
            _N: self._written[self._channel] + 1,
            _ATTEMPT: self._context.attempt,
        }
        if self._round > 1:
            data[DeltaField.ROUND] = self._round
        return data

    def _sent(self, piece: str) -> None:
        self._waiting = self._waiting[len(piece) :]
        self._written[self._channel] += 1
        self._begun.add(self._channel)
        self._last_s = self._loop.time()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def usage_view(completion: Completion) -> dict[str, object]:
    """Token usage and speed of an answer, for events and results."""
    return {
        **completion.usage.view(),
        "first_token_ms": completion.first_token_ms,
        "tokens_per_s": completion.tokens_per_s,
        "model": completion.model,
    }


def _first_piece(text: str) -> str:
    """The part of `text` that fits into one event; combining marks are not separated from their
    base.
    """
    head = text[:MOST_BYTES].encode()
    if len(head) <= MOST_BYTES and len(text) <= MOST_BYTES:
        return text
    end = len(head[:MOST_BYTES].decode(errors="ignore"))
    for cut in range(end, max(end - 32, 0), -1):
        mark = text[cut]
        if not (unicodedata.combining(mark) or mark in _JOINERS or text[cut - 1] in _JOINERS):
            return text[:cut]
    return text[:end]


def completion_result(context: JobContext, completion: Completion) -> dict[str, Any]:
    """Members common to the results of all model tasks."""
    result: dict[str, Any] = {
        "text": fix_surrogates(completion.text),
        "finish_reason": completion.finish_reason,
        "usage": completion.usage.view(),
        "ms": context.elapsed_ms,
        "first_token_ms": completion.first_token_ms,
        "tokens_per_s": completion.tokens_per_s,
        "model": completion.model,
    }
    if completion.reasoning:
        result["reasoning"] = fix_surrogates(completion.reasoning)
    if completion.tool_calls:
        result["tool_calls"] = [tool_call_view(call) for call in completion.tool_calls]
    return result


def tool_call_view(call: ToolCall) -> dict[str, Any]:
    """A tool call in OpenAI's format."""
    function = {"name": fix_surrogates(call.name), "arguments": fix_surrogates(call.arguments)}
    return {"id": fix_surrogates(call.id), "type": "function", "function": function}
