"""An agent in a worker, with a scripted model and tools that count their calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from common.contracts.models import ModelStep
from tests.support.worker.harness import WorkerHarness
from tests.support.worker.tools import ANYTHING
from worker.execution.context import JobContext
from worker.features.agent.loop import run_agent
from worker.features.agent.types import AgentLimits
from worker.features.model.token_events import TokenStream
from worker.features.model.types import CANCELED, ChatRequest, Completion, Sink, ToolCall, Usage
from worker.features.tools import builtin
from worker.features.tools.tool import Call
from worker.registry import Registry

QUESTION = [{"role": "user", "content": "How many?"}]
#: One turn of the scripted model: an answer, an error, or a function.
Turn = Completion | Exception | Callable[[JobContext, ChatRequest, Sink], Any]


def says(text: str, finish_reason: str = "stop", **more: Any) -> Completion:
    return Completion(text, finish_reason, "scripted", Usage(10, 5), **more)


def calls(*wanted: tuple[str, Any], text: str = "", id: str = "c") -> Completion:
    """An answer that calls tools."""
    made = tuple(
        ToolCall(f"{id}{number}", name, args if isinstance(args, str) else json.dumps(args))
        for number, (name, args) in enumerate(wanted)
    )
    return Completion(text, "tool_calls", "scripted", Usage(10, 5), tool_calls=made)


class ScriptedModel:
    """Gives its answers in order; streams the text word by word."""

    def __init__(self, *turns: Turn) -> None:
        self.turns = list(turns)
        self.asked: list[ChatRequest] = []

    async def complete(self, context: JobContext, request: ChatRequest, sink: Sink) -> Completion:
        self.asked.append(request)
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        if not isinstance(turn, Completion):
            turn = await turn(context, request, sink)
            assert isinstance(turn, Completion)
            return turn
        for word in turn.text.split(" ") if turn.text else ():
            await sink.text(word if turn.text.startswith(word) else f" {word}")
        return turn


async def hang(context: JobContext, request: ChatRequest, sink: Sink) -> Completion:
    """Emits one word, then nothing until the job is canceled."""
    await sink.text("so far")
    await context.wait_for_cancel()
    return says("so far", CANCELED)


class AgentHarness:
    """A registry whose `chat` task is an agent."""

    def __init__(
        self, *turns: Turn, names: list[str] | None = None, limits: AgentLimits | None = None
    ) -> None:
        self.model = ScriptedModel(*turns)
        self.names = ["effect"] if names is None else names
        self.limits = limits or AgentLimits()
        self.request = ChatRequest(list(QUESTION))
        self.registry = Registry()
        self.toolbox = self.registry.toolbox
        builtin.register_tools(self.toolbox)
        self.registry.add("chat", self.chat)
        #: Idempotency keys of all calls, and their arguments.
        self.calls: list[str] = []
        self.arguments: list[Any] = []
        self.running = asyncio.Event()
        self.add("effect")

    def add(self, name: str, function: Any = None, **terms: Any) -> None:
        async def counted(call: Call, arguments: dict[str, Any]) -> Any:
            self.calls.append(call.key)
            self.arguments.append(arguments)
            self.running.set()
            return f"{name} done" if function is None else await function(call, arguments)

        terms = {"description": f"Does {name}.", "parameters": ANYTHING, **terms}
        self.toolbox.add(counted, name=name, **terms)

    async def chat(self, context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
        async with TokenStream(context, ModelStep.CHAT) as tokens:
            result = await run_agent(
                context, self.model, self.toolbox, self.request, self.names, tokens, self.limits
            )
        return {
            "text": result.completion.text,
            "finish_reason": result.completion.finish_reason,
            "usage": result.usage.view(),
            "rounds": result.rounds,
            "ms": result.completion.ms,
            "steps": [step.view() for step in result.steps],
        }

    def ask_for(self, **changes: Any) -> None:
        self.request = replace(self.request, **changes)


async def answer(worker: WorkerHarness, job_id: str) -> dict[str, Any]:
    """The result of a finished job."""
    record = await worker.job(job_id)
    assert record[b"error"] == b"", record
    result: dict[str, Any] = json.loads(record[b"result"])
    return result


async def events(worker: WorkerHarness, job_id: str, *kinds: str) -> list[dict[str, Any]]:
    """The data of a job's events of these kinds, in order."""
    return [data for kind, _, data in await worker.parsed_events(job_id) if kind in kinds]
