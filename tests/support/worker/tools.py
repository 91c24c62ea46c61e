"""Helpers of the tool and agent tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from sluice.common.contracts.models import ModelStep
from sluice.worker.execution.context import JobContext
from sluice.worker.features.agent.loop import run_agent
from sluice.worker.features.agent.types import AgentLimits
from sluice.worker.features.model.token_events import TokenStream
from sluice.worker.features.model.types import ChatRequest
from sluice.worker.features.tools import builtin
from sluice.worker.features.tools.tool import Call
from sluice.worker.features.tools.toolbox import ToolBox
from sluice.worker.registry import Registry
from tests.support.worker.harness import WorkerHarness
from tests.support.worker.model import FakeJob
from tests.support.worker.model_tasks import Line, ScriptedModel

ANYTHING: dict[str, Any] = {"type": "object"}


class CountedTools:
    """A registry with the built-in tools, and others whose calls are counted."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.toolbox = self.registry.toolbox
        builtin.register_tools(self.toolbox)
        #: Idempotency keys of all calls, and their arguments.
        self.calls: list[str] = []
        self.arguments: list[Any] = []

    def add(self, name: str, function: Any = None, **terms: Any) -> None:
        async def counted(call: Call, arguments: dict[str, Any]) -> Any:
            self.calls.append(call.key)
            self.arguments.append(arguments)
            return f"{name} done" if function is None else await function(call, arguments)

        terms = {"description": f"Does {name}.", "parameters": ANYTHING, **terms}
        self.toolbox.add(counted, name=name, **terms)


async def use(name: str, toolbox: ToolBox | None = None, **arguments: Any) -> Any:
    """Call a tool, by default a built-in one; returns its output."""
    toolbox = toolbox or CountedTools().toolbox
    tool = toolbox.find(name)
    return (await toolbox.call(tool, tool.parse(arguments), FakeJob().context, "job-1:call")).value


async def events(worker: WorkerHarness, job_id: str, *kinds: str) -> list[dict[str, Any]]:
    """The data of a job's events of these kinds, in order."""
    return [data for kind, _, data in await worker.parsed_events(job_id) if kind in kinds]


def returning(value: Any) -> Any:
    """A tool that returns this value."""

    async def tool(call: Call, arguments: Any) -> Any:
        return value

    return tool


def raising(error: BaseException) -> Any:
    """A tool that fails."""

    async def tool(call: Call, arguments: Any) -> Any:
        raise error

    return tool


async def sleep_long(call: Any, arguments: Any) -> Any:
    """A tool that returns long after the test."""
    await asyncio.sleep(60)


class AgentHarness(CountedTools):
    """A registry whose `chat` task is an agent."""

    def __init__(
        self,
        *lines: Line,
        names: Sequence[str] = ("effect",),
        limits: AgentLimits | None = None,
        **request: Any,
    ) -> None:
        super().__init__()
        self.model = ScriptedModel(*lines)
        self.names = names
        self.limits = limits or AgentLimits()
        self.request = ChatRequest([{"role": "user", "content": "How many?"}], **request)
        self.registry.add("chat", self.chat)
        self.add("effect")

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
