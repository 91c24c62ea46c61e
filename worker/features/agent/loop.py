"""The agent loop: ask the model, run its tool calls, repeat until it answers or a limit is reached.

Answers and results are saved as they arrive. After a crash the next attempt continues from there:
it does not repeat model requests or completed tool calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sluice.common.aio import cancel
from sluice.common.contracts.models import AgentFinishReason, ModelStep
from sluice.worker.execution.context import JobContext
from sluice.worker.features.agent import messages
from sluice.worker.features.agent.answer import ModelAnswer, ToolCallSink
from sluice.worker.features.agent.tool_calls import ToolCallRunner
from sluice.worker.features.agent.types import AgentLimits, AgentModel, AgentResult, RoundSink
from sluice.worker.features.model.types import CANCELED, ChatRequest, Completion, Usage
from sluice.worker.features.tools.call_log import CallLog
from sluice.worker.features.tools.tool import Tool
from sluice.worker.features.tools.toolbox import ToolBox

#: A run ends this long before the attempt's timeout and returns what it has.
FINISH_MARGIN_S = 0.5
#: `tool_choice` that forces a call. It applies to the first round only.
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

    `tokens` receives the text of each round as it is generated. Reaching a limit is not an error:
    the completion's `finish_reason` names the limit (`AgentFinishReason`). Raises UnknownTool for
    an unknown name, and the errors of the model client.
    """
    found = [toolbox.find(name, context.tools) for name in names]
    tools = list({tool.wire_name: tool for tool in found}.values())
    call_log = await CallLog.of(context)
    calls = ToolCallRunner(context, toolbox, tools, call_log, limits.calls, step)
    return await _AgentRun(context, model, request, tools, tokens, limits, call_log, calls).run()


class _AgentRun:
    """The part of a run that one attempt executes."""

    def __init__(
        self,
        context: JobContext,
        model: AgentModel,
        request: ChatRequest,
        tools: Sequence[Tool],
        tokens: RoundSink,
        limits: AgentLimits,
        call_log: CallLog,
        calls: ToolCallRunner,
    ) -> None:
        self._context = context
        self._model = model
        self._request = request
        self._tools = tools
        self._tokens = tokens
        self._limits = limits
        self._call_log = call_log
        self._calls = calls
        self._messages: list[dict[str, Any]] = list(request.messages)
        self._answers: list[ModelAnswer] = []
        self._began = time.monotonic()
        #: Milliseconds used by earlier attempts.
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
        """Answer saved by an earlier attempt, or None."""
        saved = self._call_log.read(_answer_step(number))
        if saved is None:
            return None
        answer = ModelAnswer.from_json(saved)
        self._spent_ms = answer.at_ms + self._calls.logged_ms(number, answer)
        return answer

    def _may_call(self, number: int) -> bool:
        """True if calls are within the limits and a round is left in which the model can use the
        results.
        """
        calls = self._calls
        return number < self._limits.rounds and not calls.limit_exceeded and not calls.exhausted

    async def _request_answer(self, number: int) -> ModelAnswer:
        """The model's next answer; if time runs out, the part received so far."""
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
        choice = self._request.tool_choice
        if isinstance(choice, dict) or choice == _REQUIRED:
            return messages.resolve_tool_choice(choice, usable) if number == 1 else messages.AUTO
        return choice

    async def _call(self, number: int, answer: ModelAnswer) -> str | None:
        """Run the calls of an answer. Returns the finish reason if the run is over, else None."""
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


#: Finish reasons that take precedence over a reached call limit.
_OWN_FINISH_REASONS = frozenset({CANCELED, AgentFinishReason.MAX_TIME})


def _answer_step(number: int) -> str:
    return f"agent.{number}"
