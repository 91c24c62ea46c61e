"""A chat job's events as `chat.completion.chunk`s, each a line of an event stream."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from common.contracts.jobs import DataField, EventType, FrameType
from common.contracts.models import Channel
from gateway.openai.chat_answer import (
    CalledFunction,
    ChatResult,
    FinishReason,
    JobPart,
    UsageView,
    called,
    completion_id,
    finish_reason,
)
from gateway.openai.following import Seen
from gateway.openai.retelling import Restarted, Retelling

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": still there\n\n"


class CallDelta(BaseModel):
    """A call that the client is to make; whole, in one piece."""

    index: int
    id: str
    type: Literal["function"]
    function: CalledFunction


class Delta(BaseModel):
    """A piece of the answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChunkChoice(BaseModel):
    """Where it belongs."""

    index: Literal[0] = 0
    delta: Delta
    logprobs: None = None
    finish_reason: FinishReason | None = None


class Chunk(BaseModel):
    """One line of the stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageView | None = None
    sluice: JobPart | None = None


def sse(data: str) -> bytes:
    """A line of an event stream."""
    return b"data: %b\n\n" % data.encode()


class ChatStream:
    """Turns what happens to a job into what its client reads."""

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
        """`rounds_continue`: an agent's answers follow one another. `withheld`: the answer comes
        whole at the end, because only the last of them is it."""
        self._job_id = job_id
        self._created_s = created_s
        self._model = model
        self._include_usage = include_usage
        self._in_parallel = in_parallel
        self._withheld = withheld
        self._answer = Retelling(continuing=rounds_continue)
        self._thoughts = Retelling(continuing=rounds_continue)
        self._thinking = True

    def begin(self) -> bytes:
        """The first chunk: who speaks."""
        return self._chunk(Delta(role="assistant", content=""))

    def hear(self, seen: Seen) -> bytes:
        """What an event is to the client; raises Restarted."""
        if seen.type == EventType.MESSAGE.value:
            text = "" if self._withheld else self._answer.hear(seen.data)
            return self._chunk(Delta(content=text)) if text else b""
        if seen.type == Channel.REASONING.value:
            return self._think(seen.data)
        if seen.type == EventType.RUNNING.value:
            attempt = seen.data.get(DataField.ATTEMPT.value)
            for told in (self._answer, self._thoughts):
                told.begin(attempt if isinstance(attempt, int) else 0)
        elif seen.type == FrameType.GAP.value:
            self._answer.miss()
            self._thoughts.miss()
        elif seen.type == FrameType.HEARTBEAT.value:
            return HEARTBEAT
        return b""

    def end(self, result: ChatResult) -> bytes:
        """The rest, and the end; raises Restarted."""
        pieces = []
        if self._thinking and result.reasoning:
            pieces.append(self._rest_of_thoughts(result.reasoning))
        if rest := self._answer.end(result.text):
            pieces.append(self._chunk(Delta(content=rest)))
        for index, call in enumerate(called(result, in_parallel=self._in_parallel)):
            wanted = CallDelta(index=index, id=call.id, type=call.type, function=call.function)
            pieces.append(self._chunk(Delta(tool_calls=[wanted])))
        last = {"sluice": JobPart.of(self._job_id, result)}
        pieces.append(self._chunk(Delta(), finish_reason(result), **last))
        if self._include_usage:
            usage = None if result.usage is None else UsageView.of(result.usage)
            pieces.append(self._line(choices=[], usage=usage))
        return b"".join([*pieces, DONE])

    def _think(self, data: dict[str, Any]) -> bytes:
        """Thoughts are no part of the answer: where they change, no more of them are told."""
        if self._thinking:
            try:
                if text := self._thoughts.hear(data):
                    return self._chunk(Delta(reasoning_content=text))
            except Restarted:
                self._thinking = False
        return b""

    def _rest_of_thoughts(self, whole: str) -> bytes:
        try:
            rest = self._thoughts.end(whole)
        except Restarted:
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
