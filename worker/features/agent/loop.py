"""Lets a model use tools: asks, calls, asks again, until there is an answer or a limit is hit.

Answers and results are saved as they come. After a crash the next attempt takes the run up where
it was: what the model has said is not asked again, what a tool has done is not done again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from common.aio import cancel
from common.contracts.models import AgentFinishReason, ModelStep
from worker.execution.context import JobContext
from worker.features.agent import messages
from worker.features.agent.answer import ModelAnswer, ToolCallSink
from worker.features.agent.tool_calls import ToolCallRunner
from worker.features.agent.types import AgentLimits, AgentModel, AgentResult, RoundSink
from worker.features.model.types import CANCELED, ChatRequest, Completion, Usage
from worker.features.tools.call_log import CallLog
from worker.features.tools.tool import Tool
from worker.features.tools.toolbox import ToolBox

#: Before the attempt's time is up, a run ends by itself with what there is.
FINISH_MARGIN_S = 0.5
#: How the model is made to call something; once is enough.
_REQUIRED = "required"


async def run_agent(
    context: JobContext,
    model: AgentModel,
    toolbox: ToolBox,
    request: ChatRequest,
    names: Sequence[str],
    tokens: RoundSink,
    limits: AgentLimits,
    step: str = ModelStep.CHAT,
) -> AgentResult:
    """Answer `request` with the help of the tools in `names`.

    `tokens` hears each round's text as it comes. A limit that is hit is no error: the completion's
    `finish_reason` tells (`AgentFinishReason`). Raises UnknownTool for names that are none, and
    whatever     the model's failures are.
    """
    found = [toolbox.find(name, context.tools) for name in names]
    tools = list({tool.wire_name: tool for tool in found}.values())
    ledger = await CallLog.of(context)
    calls = ToolCallRunner(context, toolbox, tools, ledger, limits.calls, step)
    return await _AgentRun(context, model, request, tools, tokens, limits, ledger, calls).run()


class _AgentRun:
    """One run, as far as one attempt takes it."""

    def __init__(
        self,
        context: JobContext,
        model: AgentModel,
        request: ChatRequest,
        tools: Sequence[Tool],
        tokens: RoundSink,
        limits: AgentLimits,
        ledger: CallLog,
        calls: ToolCallRunner,
    ) -> None:
        self._context = context
        self._model = model
        self._request = request
        self._tools = tools
        self._tokens = tokens
        self._limits = limits
        self._call_log = ledger
        self._calls = calls
        self._messages: list[dict[str, Any]] = list(request.messages)
        self._answers: list[ModelAnswer] = []
        self._began = time.monotonic()
        #: Milliseconds that earlier attempts have taken.
        self._spent_ms = 0

    async def run(self) -> AgentResult:
        number = 0
        while True:
            number += 1
            answer = self._load_answer(number)
            if answer is None:
                if self._context.cancel_requested:
                    return self._finish(CANCELED)
                if self._remaining_s <= 0:
                    return self._finish(AgentFinishReason.MAX_TIME)
                answer = await self._request_answer(number)
                if answer.calls and self._may_call(number):
                    answer = replace(answer, at_ms=self._elapsed_ms)
                    await self._call_log.write(_answer_step(number), answer.to_json())
            self._answers.append(answer)
            if not answer.calls:
                limit = AgentFinishReason.MAX_CALLS if self._calls.limit_exceeded else None
                own = answer.finish_reason
                return self._finish(own if own in _OWN_FINISH_REASONS or limit is None else limit)
            if not self._may_call(number):
                spent = self._calls.limit_exceeded or self._calls.exhausted
                return self._finish(
                    AgentFinishReason.MAX_CALLS if spent else AgentFinishReason.MAX_ROUNDS
                )
            over = await self._call(number, answer)
            if over is not None:
                return self._finish(over)
            await self._tokens.next_round()

    def _load_answer(self, number: int) -> ModelAnswer | None:
        """The answer of an earlier attempt."""
        saved = self._call_log.read(_answer_step(number))
        if saved is None:
            return None
        answer = ModelAnswer.from_json(saved)
        self._spent_ms = answer.at_ms + self._calls.logged_ms(number, answer)
        return answer

    def _may_call(self, number: int) -> bool:
        """Whether calls of this round are of use: there is a round left to tell the model."""
        calls = self._calls
        return number < self._limits.rounds and not calls.limit_exceeded and not calls.exhausted

    async def _request_answer(self, number: int) -> ModelAnswer:
        """The model's next answer, or what there is of it when the time is up."""
        usable = self._calls.usable
        request = replace(
            self._request,
            messages=list(self._messages),
            tools=messages.tool_definitions(usable or self._tools) or None,
            tool_choice=self._choice(number, usable),
        )
        names = {name for tool in self._tools for name in (tool.wire_name, tool.name)}
        listening = ToolCallSink(self._tokens, names)
        asking = asyncio.ensure_future(self._model.complete(self._context, request, listening))
        try:
            await asyncio.wait({asking}, timeout=max(self._remaining_s, 0.0))
            if not asking.done():
                model = self._answers[-1].model if self._answers else ""
                end = AgentFinishReason.MAX_TIME
                return ModelAnswer(
                    listening.emitted_text, end, model, reasoning=listening.emitted_reasoning
                )
            completion = asking.result()
        finally:
            if not asking.done():
                await cancel(asking)
        spoken = await listening.end(number)
        if completion.canceled:
            return ModelAnswer.of(completion, completion.text, ())
        text = listening.emitted_text if spoken else completion.text
        return ModelAnswer.of(completion, text, completion.tool_calls or spoken)

    def _choice(self, number: int, usable: Sequence[Tool]) -> str | dict[str, Any] | None:
        if not self._tools:
            return None
        if not usable or not self._may_call(number):
            return messages.NO_CALLS
        wanted = self._request.tool_choice
        if isinstance(wanted, dict) or wanted == _REQUIRED:
            return messages.resolve_tool_choice(wanted, usable) if number == 1 else messages.AUTO
        return wanted

    async def _call(self, number: int, answer: ModelAnswer) -> str | None:
        """Make an answer's calls; returns why the run is over, if it is."""
        self._messages.append(messages.assistant_message(answer.text, answer.calls))
        deadline = time.monotonic() + self._remaining_s
        results, over = await self._calls.run_calls(number, answer, deadline)
        self._messages += [messages.tool_message(call, text) for call, text in results]
        return over

    @property
    def _elapsed_ms(self) -> int:
        return self._spent_ms + int((time.monotonic() - self._began) * 1000)

    @property
    def _remaining_s(self) -> float:
        left_s = self._limits.seconds - self._elapsed_ms / 1000
        remaining_s = self._context.remaining_s
        return left_s if remaining_s is None else min(left_s, remaining_s - FINISH_MARGIN_S)

    def _finish(self, reason: str) -> AgentResult:
        answers = self._answers
        last = answers[-1] if answers else ModelAnswer("", reason, "")
        usage = Usage()
        for answer in answers:
            usage += answer.usage
        completion = Completion(
            text=last.text,
            finish_reason=reason,
            model=last.model,
            usage=usage,
            reasoning=last.reasoning,
            first_token_ms=answers[0].first_token_ms if answers else None,
            ms=self._elapsed_ms,
            tokens_per_s=last.tokens_per_s,
        )
        return AgentResult(completion, self._calls.steps, len(answers))


#: Ends that say more than a limit of calls does.
_OWN_FINISH_REASONS = frozenset({CANCELED, AgentFinishReason.MAX_TIME})


def _answer_step(number: int) -> str:
    return f"agent.{number}"
