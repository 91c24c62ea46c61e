"""The events of a chat job as a stream of `chat.completion.chunk`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sluice.common.aio import cancel
from sluice.common.contracts.jobs import DataField, EventType, FrameType
from sluice.common.contracts.models import DeltaField, HandlerEventType
from sluice.gateway.events.frames import escape_line_breaks
from sluice.gateway.events.response import SEND_TIMEOUT_S, SSE, STREAM_HEADERS
from sluice.gateway.features.openai.chat.response import (
    ChatJobInfo,
    ChatResult,
    FinishReason,
    FunctionCallView,
    UsageView,
    chat_result,
    client_tool_calls,
    completion_id,
    finish_reason,
)
from sluice.gateway.features.openai.errors import answer_restarted
from sluice.gateway.features.openai.job_runner import (
    ClientDisconnected,
    JobEvent,
    JobFollower,
    PendingJob,
    job_result,
    run_while_connected,
)
from sluice.gateway.http.error_formats import openai_error_view
from sluice.gateway.http.problems import problem_of

#: Separates the answers of an agent that called the model several times.
PARAGRAPH = "\n\n"


class AnswerMismatch(Exception):
    """The new attempt's answer differs from what the client has received."""


class ResumableText:
    """A text that is streamed to a client, across attempts: the answer, or its reasoning."""

    def __init__(self, *, continuing: bool = False) -> None:
        """`continuing`: each round is appended; otherwise a later round replaces the earlier."""
        self._continuing = continuing
        self._attempt = 0
        #: Number of the attempt's last event, and whether none was missed.
        self._n = 0
        self._whole = True
        #: Text sent to the client by round, and how far this attempt has got in its round.
        self._sent: dict[int, str] = {}
        self._round = 1
        self._offset = 0

    def begin(self, attempt: int) -> None:
        if attempt > self._attempt:
            self._attempt = attempt
            self._n = self._offset = 0
            self._round = 1
            self._whole = True

    def mark_gap(self) -> None:
        """Record that events were lost."""
        self._whole = False

    def feed(self, data: dict[str, Any]) -> str:
        """The text that an event adds; raises AnswerMismatch."""
        delta = data.get(DeltaField.DELTA)
        attempt = data.get(DeltaField.ATTEMPT, self._attempt)
        if not isinstance(delta, str) or not isinstance(attempt, int) or attempt < self._attempt:
            return ""
        self.begin(attempt)
        number = data.get(DeltaField.N, self._n + 1)
        if number != self._n + 1:
            self.mark_gap()
        self._n = number if isinstance(number, int) else self._n
        if not self._whole:
            return ""  # its position is unknown; `end` sends the rest
        return self._add(delta, self._key(data.get(DeltaField.ROUND, 1)))

    def end(self, text: str) -> str:
        """The rest of the complete text; raises AnswerMismatch."""
        key = max(self._sent, default=1)
        sent = self._sent.get(key, "")
        if text.startswith(sent):
            return self._emit(text[len(sent) :], key)
        current = self._round if self._continuing else 1
        if self._whole and current == key and self._offset == len(sent):
            return ""  # all events were sent; the result is formatted differently
        if self._continuing:
            return self._emit(text, key + 1)
        raise AnswerMismatch

    def _key(self, number: object) -> int:
        """The key of an event's round in `_sent`."""
        number = number if isinstance(number, int) else 1
        if number != self._round:
            self._round = number
            self._offset = 0
        return number if self._continuing else 1

    def _add(self, delta: str, key: int) -> str:
        sent = self._sent.get(key, "")
        known = sent[self._offset : self._offset + len(delta)]
        if not delta.startswith(known):
            raise AnswerMismatch
        self._offset += len(delta)
        fresh = delta[len(known) :]
        if fresh and key < max(self._sent, default=1):
            raise AnswerMismatch  # a later round was sent already
        return self._emit(fresh, key)

    def _emit(self, fresh: str, key: int) -> str:
        if not fresh:
            return ""
        before = self._sent.get(key, "")
        self._sent[key] = before + fresh
        return PARAGRAPH + fresh if not before and len(self._sent) > 1 else fresh


DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": still there\n\n"


class CallDelta(BaseModel):
    """A complete tool call for the client."""

    index: int
    id: str
    type: Literal["function"]
    function: FunctionCallView


class Delta(BaseModel):
    """A piece of the answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChunkChoice(BaseModel):
    """The only choice of a chunk."""

    index: Literal[0] = 0
    delta: Delta
    logprobs: None = None
    finish_reason: FinishReason | None = None


class Chunk(BaseModel):
    """One event of the stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageView | None = None
    sluice: ChatJobInfo | None = None


def sse(data: str) -> bytes:
    return b"data: %b\n\n" % escape_line_breaks(data.encode())


class ChatStream:
    """Turns the events of a job into chunks."""

    def __init__(
        self,
        job_id: str,
        created_s: int,
        model: str,
        *,
        include_usage: bool = False,
        in_parallel: bool = True,
        rounds_continue: bool = False,
        withheld: bool = False,
    ) -> None:
        """`rounds_continue`: the answers of an agent are appended. `withheld`: the answer is sent
        at the end, because only the last one counts."""
        self._job_id = job_id
        self._created_s = created_s
        self._model = model
        self._include_usage = include_usage
        self._in_parallel = in_parallel
        self._withheld = withheld
        self._answer = ResumableText(continuing=rounds_continue)
        self._thoughts = ResumableText(continuing=rounds_continue)
        self._thinking = True

    def begin(self) -> bytes:
        return self._chunk(Delta(role="assistant", content=""))

    def feed(self, seen: JobEvent) -> bytes:
        """The chunks of an event; raises AnswerMismatch."""
        if seen.type == EventType.MESSAGE:
            text = "" if self._withheld else self._answer.feed(seen.data)
            return self._chunk(Delta(content=text)) if text else b""
        if seen.type == HandlerEventType.REASONING:
            return self._think(seen.data)
        if seen.type == EventType.RUNNING:
            attempt = seen.data.get(DataField.ATTEMPT)
            for text_stream in (self._answer, self._thoughts):
                text_stream.begin(attempt if isinstance(attempt, int) else 0)
        elif seen.type == FrameType.GAP:
            self._answer.mark_gap()
            self._thoughts.mark_gap()
        elif seen.type == FrameType.HEARTBEAT:
            return HEARTBEAT
        return b""

    def end(self, result: ChatResult) -> bytes:
        """The last chunks; raises AnswerMismatch."""
        pieces = []
        if self._thinking and result.reasoning:
            pieces.append(self._rest_of_thoughts(result.reasoning))
        if rest := self._answer.end(result.text):
            pieces.append(self._chunk(Delta(content=rest)))
        for index, call in enumerate(client_tool_calls(result, in_parallel=self._in_parallel)):
            wanted = CallDelta(index=index, id=call.id, type=call.type, function=call.function)
            pieces.append(self._chunk(Delta(tool_calls=[wanted])))
        last = {"sluice": ChatJobInfo.of(self._job_id, result)}
        pieces.append(self._chunk(Delta(), finish_reason(result), **last))
        if self._include_usage:
            usage = None if result.usage is None else UsageView.of(result.usage)
            pieces.append(self._line(choices=[], usage=usage))
        return b"".join([*pieces, DONE])

    def _think(self, data: dict[str, Any]) -> bytes:
        """The chunk of a reasoning event. If the reasoning of a new attempt differs, no more of it
        is sent."""
        if self._thinking:
            try:
                if text := self._thoughts.feed(data):
                    return self._chunk(Delta(reasoning_content=text))
            except AnswerMismatch:
                self._thinking = False
        return b""

    def _rest_of_thoughts(self, whole: str) -> bytes:
        try:
            rest = self._thoughts.end(whole)
        except AnswerMismatch:
            return b""
        return self._chunk(Delta(reasoning_content=rest)) if rest else b""

    def _chunk(self, delta: Delta, reason: FinishReason | None = None, **more: Any) -> bytes:
        choice = ChunkChoice(index=0, delta=delta, finish_reason=reason)
        if self._include_usage:
            more["usage"] = None
        return self._line(choices=[choice], **more)

    def _line(self, **members: Any) -> bytes:
        chunk = Chunk(
            id=completion_id(self._job_id),
            object="chat.completion.chunk",
            created=self._created_s,
            model=self._model,
            **members,
        )
        return sse(chunk.model_dump_json(exclude_unset=True))


#: Seconds to wait before the stream starts: a job that fails earlier gets an error status.
FIRST_CHUNK_WAIT_S = 1.0


class ChatStreamResponse(Response):
    """Sends chunks as they arrive. A failure before the first one is an error response."""

    media_type = SSE

    def __init__(self, pending: PendingJob, chat: ChatStream, headers: Mapping[str, str]) -> None:
        super().__init__(headers={**headers, **STREAM_HEADERS})
        del self.headers["content-length"]
        self._job = pending
        self._chat = chat
        #: True once the last chunk is sent: servers then report a disconnect.
        self._over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve until the stream ends or the client disconnects."""
        with contextlib.suppress(ClientDisconnected):
            await run_while_connected(self._serve(send), receive, self._give_up)

    async def _give_up(self) -> None:
        if not self._over:
            await self._job.give_up()

    async def _serve(self, send: Send) -> None:
        following = self._job.follow()
        coming = asyncio.create_task(self._next(following))
        try:
            await asyncio.wait({coming}, timeout=FIRST_CHUNK_WAIT_S)
            if coming.done():
                coming.result()  # a problem here becomes an error response
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            piece, more = self._chat.begin(), True
            while more:
                await _send_body(send, piece)
                piece, more = await self._await_piece(coming)
                if more:
                    coming = asyncio.create_task(self._next(following))
            self._over = True
            await _send_body(send, piece, more=False)
        finally:
            following.close()
            await cancel(coming)

    async def _await_piece(self, coming: asyncio.Future[tuple[bytes, bool]]) -> tuple[bytes, bool]:
        """The next bytes; once the stream has started, an error is an event in it."""
        try:
            return await coming
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                raise
            view = openai_error_view(problem.status, problem.code, problem.detail)
            return sse(view.model_dump_json()), False

    async def _next(self, following: JobFollower) -> tuple[bytes, bool]:
        """The next bytes for the client, and whether more will follow."""
        loop = asyncio.get_running_loop()
        heartbeat_s = self._job.state.settings.sse_heartbeat_s
        quiet_until = loop.time() + heartbeat_s
        try:
            while batch := await following.next():
                chunks = b"".join([self._chat.feed(event) for event in batch])
                if chunks or loop.time() >= quiet_until:  # not every event has a chunk
                    return chunks or HEARTBEAT, True
            job = await following.end()
            result = chat_result(job_result(job).result)
            return self._chat.end(result), False
        except AnswerMismatch:
            raise answer_restarted(following.job_id) from None


async def _send_body(send: Send, body: bytes, *, more: bool = True) -> None:
    """Send with a timeout. (`wait_for` could lose the end of the stream.)"""
    message = {"type": "http.response.body", "body": body, "more_body": more}
    sending = asyncio.ensure_future(send(message))
    try:
        await asyncio.wait({sending}, timeout=SEND_TIMEOUT_S)
        if not sending.done():
            raise ClientDisconnected
        sending.result()
    finally:
        sending.cancel()
