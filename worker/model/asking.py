"""One request for an answer, and the answer as it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from worker.model.budget import Stopwatch
from worker.model.chunks import DONE, Chunk, ServerError, chunk_of, parse
from worker.model.draft import Draft
from worker.model.endpoint import Endpoint
from worker.model.errors import ModelAnswerInvalid, quoted
from worker.model.http import Hiccup, Http, body_of, check, refusal
from worker.model.sse import EventParser
from worker.model.types import ChatRequest, Sink

if TYPE_CHECKING:
    import httpx2

#: Most that is read of an answer that comes in one piece.
MOST_BYTES = 8 * 1024 * 1024
_STREAM = "event-stream"


def body_for(
    request: ChatRequest, model: str, *, extras: bool = True, progress: bool = False
) -> dict[str, Any]:
    """A request as the server wants it. `extras` are members that some servers do not know."""
    named = request.model or model
    given: dict[str, Any] = {
        "model": named or None,
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
    body = {name: value for name, value in given.items() if value is not None}
    body["stream"] = True
    if extras:
        body["stream_options"] = {"include_usage": True}
        if progress:
            body["return_progress"] = True
    return body


class Asking:
    """Sends a request, fills a draft, hands every piece on."""

    def __init__(self, http: Http, endpoint: Endpoint, sink: Sink, watch: Stopwatch) -> None:
        self._http = http
        self._endpoint = endpoint
        self._sink = sink
        self._watch = watch

    async def run(self, body: dict[str, Any], draft: Draft, headers: dict[str, str]) -> None:
        """Ask, and return when the answer is whole.

        Raises Hiccup for what may pass, ModelRefused and ModelAnswerInvalid for what will not;
        what there is of the answer is in the draft all the same.
        """
        self._watch.ask()
        url = self._endpoint.api("/chat/completions")
        async with self._http.request(
            self._endpoint, "POST", url, body, headers=headers
        ) as response:
            await check(response, self._endpoint)
            if _STREAM in response.headers.get("content-type", ""):
                await self._read_stream(response, draft)
            else:
                await self._read_whole(response, draft)

    async def _read_stream(self, response: httpx2.Response, draft: Draft) -> None:
        from httpx2 import TransportError

        parser, over = EventParser(), False
        try:
            async for data in response.aiter_bytes():
                for event in parser.feed(data):
                    over = over or await self._event(event, draft)
            for event in parser.end():
                over = over or await self._event(event, draft)
        except TransportError:
            if draft.finish_reason is None:
                raise  # else nothing is missing but numbers
        self._check_whole(draft, said_so=over)

    async def _event(self, event: bytes, draft: Draft) -> bool:
        """Take an event; True for the last one. What follows it is read to keep the connection."""
        if event.strip() != DONE:
            await self._take(chunk_of(parse(event)), draft)
            return False
        self._watch.ending()
        return True

    async def _read_whole(self, response: httpx2.Response, draft: Draft) -> None:
        """The answer of a server that does not stream."""
        kind = response.headers.get("content-type", "")
        raw = await body_of(response, MOST_BYTES)
        if "html" in kind:
            beginning = quoted(raw[:120].decode(errors="replace"))
            raise ModelAnswerInvalid(
                f"{self._endpoint.base} answered with a web page: {beginning!r}; "
                f"is {self._endpoint.setting}_URL right?"
            )
        await self._take(chunk_of(parse(raw)), draft)
        self._check_whole(draft, said_so=True)

    async def _take(self, chunk: Chunk, draft: Draft) -> None:
        if chunk.error is not None:
            self._fail(chunk.error)
        draft.add(chunk)
        if chunk.says_something:
            self._watch.token()
            draft.begun = True
        if chunk.reasoning or chunk.text or chunk.progress is not None:
            await self._hand_on(chunk)
        if draft.finish_reason is not None:
            self._watch.ending()

    async def _hand_on(self, chunk: Chunk) -> None:
        if chunk.progress is not None and not chunk.says_something:
            await self._sink.progress(*chunk.progress)  # the model still reads: its time runs
            return
        self._watch.hold()
        if chunk.reasoning:
            await self._sink.reasoning(chunk.reasoning)
        if chunk.text:
            await self._sink.text(chunk.text)
        self._watch.stir()

    def _fail(self, error: ServerError) -> None:
        words = f"{self._endpoint.base} says: {error.message}"
        if 400 <= error.code < 500 and error.code != 429:
            raise refusal(self._endpoint, error.code, words)
        raise Hiccup(words, status=error.code or 500)

    @staticmethod
    def _check_whole(draft: Draft, *, said_so: bool) -> None:
        """Whether what came is an answer, now that nothing more will come."""
        if draft.finish_reason is not None:
            return
        if not said_so:
            raise Hiccup("the model server closed the connection in mid-answer", broke=True)
        if not draft.chosen:
            raise ModelAnswerInvalid(
                "the model server sent an answer without a choice; "
                "does MODEL_URL lead to an OpenAI-compatible server?"
            )
