"""A scripted model, and a worker for the handlers that use it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

from common.codec import dumps
from tests.support.worker.harness import MakeWorker, WorkerHarness
from worker.execution.context import JobContext
from worker.execution.outcome import Outcome
from worker.features.model.checker.checker import Checker
from worker.features.model.types import CANCELED, ChatRequest, Completion, Sink, ToolCall, Usage
from worker.registry import Registry

#: Two seconds of CPU time may take long on a busy machine.
TIMEOUT_S = 60.0


class Hang:
    """An answer that begins and then waits for cancellation."""

    def __init__(self, text: str) -> None:
        self.text = text


#: One answer: a text, a text followed by hanging, a completion, or an error.
Line = str | Hang | Completion | Exception


class ScriptedModel:
    """Takes the place of the model client."""

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
        if isinstance(line, Completion):
            await sink.text(line.text)
            return line
        text = line if isinstance(line, str) else line.text
        words = re.findall(r"\s*\S+\s*$|\s*\S+|\s+$", text)
        for word in words:
            await sink.text(word)
        if isinstance(line, Hang):
            self.hanging.set()
            await context.wait_for_cancel()
        reason = CANCELED if isinstance(line, Hang) else "stop"
        return Completion(text, reason, self.name, Usage(7, len(words)), "", (), 5, 50, 20.0)

    def last_message(self, number: int) -> str:
        """The last message of a request; numbers count from 0."""
        return str(self.requests[number].messages[-1]["content"])


def cut_off(text: str) -> Completion:
    """An answer cut off by the token limit."""
    return Completion(text, "length", "scripted", Usage(7, 16))


def wants(*calls: ToolCall) -> Completion:
    """An answer that calls functions."""
    return Completion("", "tool_calls", "scripted", Usage(7, 9), tool_calls=calls)


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
        kept: dict[str, Any] = json.loads((await self.harness.job(job_id))[b"result"])
        return kept


#: Registers a handler with its dependencies.
Registering = Callable[[Registry, ScriptedModel, Checker], None]
MakeScripted = Callable[..., ScriptedWorker]


async def scripted_worker_maker(
    make: MakeWorker, task: str, registering: Registering
) -> AsyncIterator[MakeScripted]:
    """Makes workers and closes what they share."""
    checker = Checker()

    def make_scripted(*lines: Line) -> ScriptedWorker:
        model, registry = ScriptedModel(*lines), Registry()
        registering(registry, model, checker)
        return ScriptedWorker(make(registry=registry), model, task)

    yield make_scripted
    await checker.close()


def joined(events: list[tuple[str, str, Any]], step: str) -> str:
    """The deltas of the last round, joined."""
    deltas = [data for type, at, data in events if (type, at) == ("message", step)]
    assert [data["n"] for data in deltas] == list(range(1, len(deltas) + 1))
    last = max((data.get("round", 1) for data in deltas), default=1)
    return "".join(data["delta"] for data in deltas if data.get("round", 1) == last)
