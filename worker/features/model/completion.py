"""Sends one chat request and assembles the streamed answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.worker.features.model.endpoint import Endpoint
from sluice.worker.features.model.errors import ModelAnswerInvalid, sanitize_text
from sluice.worker.features.model.timeouts import Stopwatch
from sluice.worker.features.model.types import (
    CANCELED,
    ChatRequest,
    Completion,
    Sink,
    ToolCall,
    Usage,
)
from sluice.worker.features.model.wire.chunks import (
    STREAM_END,
    Chunk,
    ServerError,
    SseParser,
    ToolCallDelta,
    parse_chunk,
    parse_json,
)
from sluice.worker.features.model.wire.http import (
    ModelHttpClient,
    RetryableFailure,
    check_status,
    read_body,
    refused_error,
)

if TYPE_CHECKING:
    import httpx2

#: Longest answer in characters: reasoning, text and arguments together.
MOST_CHARS = 4 * 1024 * 1024
#: Most tool calls of one answer.
MOST_CALLS = 128
_STOP, _TOOL_CALLS = "stop", "tool_calls"


@dataclass
class _PartialToolCall:
    id: str = ""
    name: str = ""
    arguments: str = ""


class PartialCompletion:
    """Collects the chunks of an answer; remains usable if the stream breaks off."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.finish_reason: str | None = None
        #: True once a chunk was forwarded; from then on the request must not be repeated.
        self.started = False
        #: True if any chunk had a choice.
        self.has_choice = False
        #: Chunks with content. Servers that report no usage send about one per token.
        self.pieces = 0
        self.usage: Usage | None = None
        self._tokens_per_s: float | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_PartialToolCall] = []
        self._by_index: dict[int, _PartialToolCall] = {}
        self._chars = 0
        #: Prompt tokens, if the server reports its progress.
        self._prompt = 0

    def add(self, chunk: Chunk) -> None:
        """Add a chunk. Raises ModelAnswerInvalid if the answer exceeds the limits."""
        if chunk.has_content:
            self.pieces += 1
        if chunk.progress is not None:
            self._prompt = chunk.progress[1]
        if chunk.text:
            self._text.append(chunk.text)
        if chunk.reasoning:
            self._reasoning.append(chunk.reasoning)
        for piece in chunk.calls:
            self._add_call(piece)
        self.has_choice = self.has_choice or chunk.has_choice
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

    def _add_call(self, piece: ToolCallDelta) -> None:
        call = self._find_call(piece)
        call.id = call.id or piece.id
        call.name = call.name or piece.name
        call.arguments += piece.arguments

    def _find_call(self, piece: ToolCallDelta) -> _PartialToolCall:
        """The call that a delta belongs to. Some servers number calls wrongly, or not at all."""
        if piece.index is None:
            found = None if piece.id or piece.name or not self._calls else self._calls[-1]
        else:
            found = self._by_index.get(piece.index)
            if found is not None and piece.id and found.id and piece.id != found.id:
                found = None
        if found is None:
            found = _PartialToolCall()
            self._calls.append(found)
            if piece.index is not None:
                self._by_index[piece.index] = found
        return found

    @property
    def text(self) -> str:
        return "".join(self._text)

    def completion(self, watch: Stopwatch, *, canceled: bool = False) -> Completion:
        """The answer so far."""
        calls = tuple(
            ToolCall(call.id or f"call_{number}", call.name, call.arguments)
            for number, call in enumerate(self._calls)
        )
        if canceled:
            reason, calls = CANCELED, ()  # an incomplete call is useless
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
        # Excludes the first token: its time is that of the prompt.
        if not spent_s or usage.completion_tokens < 2:
            return None
        return round((usage.completion_tokens - 1) / spent_s, 2)


#: Most bytes read of an answer that is not streamed.
MOST_BYTES = 8 * 1024 * 1024
_STREAM = "event-stream"


def request_body(
    request: ChatRequest, model: str, *, extras: bool = True, progress: bool = False
) -> dict[str, Any]:
    """Body of a request. `extras` adds members that some servers do not know."""
    name = request.model or model
    members: dict[str, Any] = {
        "model": name or None,
        "messages": request.messages,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop": request.stop,
        "seed": request.seed,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "response_format": request.response_format,
        "tools": request.tools,
        "tool_choice": request.tool_choice,
    }
    body = {name: value for name, value in members.items() if value is not None}
    body["stream"] = True
    if extras:
        body["stream_options"] = {"include_usage": True}
        if progress:
            body["return_progress"] = True
    return body


class StreamingRequest:
    """Sends a request, adds chunks to a PartialCompletion and forwards them to a sink."""

    def __init__(
        self, http: ModelHttpClient, endpoint: Endpoint, sink: Sink, watch: Stopwatch
    ) -> None:
        self._http = http
        self._endpoint = endpoint
        self._sink = sink
        self._stopwatch = watch

    async def run(
        self, body: dict[str, Any], draft: PartialCompletion, headers: dict[str, str]
    ) -> None:
        """Send the request; returns when the answer is complete.

        Raises RetryableFailure for temporary failures, ModelRefused and ModelAnswerInvalid for
        permanent ones. `draft` holds the part of the answer that was received.
        """
        self._stopwatch.ask()
        url = self._endpoint.api("/chat/completions")
        async with self._http.request(
            self._endpoint, "POST", url, body, headers=headers
        ) as response:
            await check_status(response, self._endpoint)
            if _STREAM in response.headers.get("content-type", ""):
                await self._read_stream(response, draft)
            else:
                await self._read_whole(response, draft)

    async def _read_stream(self, response: httpx2.Response, draft: PartialCompletion) -> None:
        from httpx2 import TransportError

        parser, over = SseParser(), False
        try:
            async for data in response.aiter_bytes():
                for event in parser.feed(data):
                    over = over or await self._handle_event(event, draft)
            for event in parser.end():
                over = over or await self._handle_event(event, draft)
        except TransportError:
            if draft.finish_reason is None:
                raise  # otherwise only usage numbers are missing
        self._check_complete(draft, end_received=over)

    async def _handle_event(self, event: bytes, draft: PartialCompletion) -> bool:
        """Process an event; returns True for the last one.

        The rest is read to keep the connection.
        """
        if event.strip() != STREAM_END:
            await self._handle_chunk(parse_chunk(parse_json(event)), draft)
            return False
        self._stopwatch.mark_ended()
        return True

    async def _read_whole(self, response: httpx2.Response, draft: PartialCompletion) -> None:
        """Read the answer of a server that does not stream."""
        kind = response.headers.get("content-type", "")
        raw = await read_body(response, MOST_BYTES)
        if "html" in kind:
            beginning = sanitize_text(raw[:120].decode(errors="replace"))
            raise ModelAnswerInvalid(
                f"{self._endpoint.base} answered with a web page: {beginning!r}; "
                f"is {self._endpoint.setting}_URL right?"
            )
        await self._handle_chunk(parse_chunk(parse_json(raw)), draft)
        self._check_complete(draft, end_received=True)

    async def _handle_chunk(self, chunk: Chunk, draft: PartialCompletion) -> None:
        if chunk.error is not None:
            self._fail(chunk.error)
        draft.add(chunk)
        if chunk.has_content:
            self._stopwatch.mark_token()
            draft.started = True
        if chunk.reasoning or chunk.text or chunk.progress is not None:
            await self._forward(chunk)
        if draft.finish_reason is not None:
            self._stopwatch.mark_ended()

    async def _forward(self, chunk: Chunk) -> None:
        if chunk.progress is not None and not chunk.has_content:
            # the prompt is still being processed: do not pause the timeouts
            await self._sink.progress(*chunk.progress)
            return
        self._stopwatch.pause()
        if chunk.reasoning:
            await self._sink.reasoning(chunk.reasoning)
        if chunk.text:
            await self._sink.text(chunk.text)
        self._stopwatch.touch()

    def _fail(self, error: ServerError) -> None:
        message = f"{self._endpoint.base} replied: {error.message}"
        if 400 <= error.code < 500 and error.code != 429:
            raise refused_error(self._endpoint, error.code, message)
        raise RetryableFailure(message, status=error.code or 500)

    @staticmethod
    def _check_complete(draft: PartialCompletion, *, end_received: bool) -> None:
        """Raise unless the received chunks are a complete answer."""
        if draft.finish_reason is not None:
            return
        if not end_received:
            raise RetryableFailure(
                "the model server closed the connection in mid-answer", broke=True, invalid=True
            )
        if not draft.has_choice:
            raise ModelAnswerInvalid(
                "the model server sent an answer without a choice; "
                "is MODEL_URL an OpenAI-compatible server?"
            )
