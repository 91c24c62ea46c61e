"""An agent in a worker, with a scripted model and tools that count their calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.contracts.models import ModelStep
from tests.support.worker.model_tasks import Line, ScriptedModel
from tests.support.worker.tools import CountedTools
from worker.execution.context import JobContext
from worker.features.agent.loop import run_agent
from worker.features.agent.types import AgentLimits
from worker.features.model.token_events import TokenStream
from worker.features.model.types import ChatRequest


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
