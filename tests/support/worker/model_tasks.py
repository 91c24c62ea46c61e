"""A scripted model, and a worker for the handlers that use it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

from sluice.common.codec import dumps
from sluice.worker.execution.context import JobContext
from sluice.worker.execution.outcome import Outcome
from sluice.worker.features.model.types import (
    CANCELED,
    ChatRequest,
    Completion,
    Sink,
    ToolCall,
    Usage,
)
from tests.support.worker.harness import WorkerHarness

#: Two seconds of CPU time may take long on a busy machine.
TIMEOUT_S = 60.0


class Hang(str):
    """An answer that begins and then waits for cancellation."""


#: One answer: a text, a completion, an error, or a function.
Line = str | Completion | Exception | Callable[[JobContext, ChatRequest, Sink], Any]


class ScriptedModel:
    """Takes the place of the model client; streams the texts word by word."""

    def __init__(self, *lines: Line) -> None:
        self.name = "scripted"
        self.lines = list(lines)
        self.requests: list[ChatRequest] = []
        #: Set when a hanging answer has begun.
        self.hanging = asyncio.Event()

    async def complete(self, context: JobContext, request: ChatRequest, sink: Sink) -> Completion:
        self.requests.append(request)
        line = self.lines.pop(0)
        if isinstance(line, Exception):
            raise line
        if callable(line):
            made: Completion = await line(context, request, sink)
            return made
        reason = CANCELED if isinstance(line, Hang) else "stop"
        answer = says(line, reason) if isinstance(line, str) else line
        for word in words_of(answer.text):
            await sink.text(word)
        if isinstance(line, Hang):
            self.hanging.set()
            await context.wait_for_cancel()
        return answer

    def last_message(self, number: int) -> str:
        """The last message of a request; numbers count from 0."""
        return str(self.requests[number].messages[-1]["content"])


def words_of(text: str) -> list[str]:
    return re.findall(r"\s*\S+\s*$|\s*\S+|\s+$", text)


def says(text: str, finish_reason: str = "stop") -> Completion:
    """An answer with a text; each word is a token."""
    usage = Usage(7, len(words_of(text)))
    return Completion(text, finish_reason, "scripted", usage, "", (), 5, 50, 20.0)


def calls(*wanted: tuple[str, Any], text: str = "") -> Completion:
    """An answer that calls functions: their names and arguments."""
    made = tuple(
        ToolCall(f"c{number}", name, args if isinstance(args, str) else json.dumps(args))
        for number, (name, args) in enumerate(wanted)
    )
    return Completion(text, "tool_calls", "scripted", Usage(10, 5), tool_calls=made)


class ScriptedWorker:
    """A worker whose model is scripted."""

    def __init__(self, harness: WorkerHarness, model: ScriptedModel, task: str) -> None:
        self.harness = harness
        self.model = model
        self._task = task

    async def run(self, **payload: Any) -> tuple[dict[str, Any], list[tuple[str, str, Any]]]:
        """Run a job that succeeds; returns its result and its events."""
        outcome, job_id = await self._execute(payload)
        record = await self.harness.job(job_id)
        assert outcome is Outcome.DONE, record[b"error"]
        return json.loads(record[b"result"]), await self.harness.parsed_events(job_id)

    async def fail(self, **payload: Any) -> dict[str, Any]:
        """Run a job that fails; returns its error."""
        outcome, job_id = await self._execute(payload)
        assert outcome is Outcome.ERROR
        return await self.harness.error(job_id)

    async def _execute(self, payload: dict[str, Any]) -> tuple[Outcome, str]:
        attempt = await self.harness.attempt(dumps(payload), self._task)
        outcome = await asyncio.wait_for(self.harness.executor.run(attempt), TIMEOUT_S)
        return outcome, attempt.lease.job_id

    async def cancel_in_the_middle(self, **payload: Any) -> dict[str, Any]:
        """Cancel a job whose answer hangs; returns its partial result."""
        self.harness.start()
        [job_id] = await self.harness.post(task=self._task, payload=dumps(payload))
        await asyncio.wait_for(self.model.hanging.wait(), 10)
        await self.harness.cancel(job_id)
        assert await self.harness.settled(job_id) == b"canceled"
        assert (await self.harness.types(job_id))[-2:] == [b"usage", b"canceled"]
        kept: dict[str, Any] = await self.harness.result(job_id)
        return kept


MakeScripted = Callable[..., ScriptedWorker]


def joined(events: list[tuple[str, str, Any]], step: str) -> str:
    """The deltas of the last round, joined."""
    deltas = [data for type, at, data in events if (type, at) == ("message", step)]
    assert [data["n"] for data in deltas] == list(range(1, len(deltas) + 1))
    last = max((data.get("round", 1) for data in deltas), default=1)
    return "".join(data["delta"] for data in deltas if data.get("round", 1) == last)
