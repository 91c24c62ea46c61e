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

from common.cancellation import cancel
from common.contracts.models import ModelStep
from common.contracts.tools import AgentEnd
from worker.agent import talk
from worker.agent.answer import Answer
from worker.agent.calls import Calls
from worker.agent.spoken import Listening
from worker.agent.types import AgentLimits, AgentResult, Model, Rounds
from worker.context import JobContext
from worker.model.types import CANCELED, ChatRequest, Completion, Usage
from worker.tools.ledger import Ledger
from worker.tools.tool import Tool
from worker.tools.toolbox import ToolBox

#: Before the attempt's time is up, a run ends by itself with what there is.
MARGIN_S = 0.5
#: How the model is made to call something; once is enough.
_REQUIRED = "required"


async def run_agent(
    context: JobContext,
    model: Model,
    toolbox: ToolBox,
    request: ChatRequest,
    names: Sequence[str],
    tokens: Rounds,
    limits: AgentLimits,
    step: ModelStep = ModelStep.CHAT,
) -> AgentResult:
    """Answer `request` with the help of the tools in `names`.

    `tokens` hears each round's text as it comes. A limit that is hit is no error: the completion's
    `finish_reason` tells (`AgentEnd`). Raises UnknownTool for names that are none, and whatever
    the model's failures are.
    """
    found = [toolbox.find(name, context.tools) for name in names]
    tools = list({tool.wire_name: tool for tool in found}.values())
    ledger = await Ledger.of(context)
    calls = Calls(context, toolbox, tools, ledger, limits.calls, step.value)
    return await _Run(context, model, request, tools, tokens, limits, ledger, calls).run()


class _Run:
    """One run, as far as one attempt takes it."""

    def __init__(
        self,
        context: JobContext,
        model: Model,
        request: ChatRequest,
        tools: Sequence[Tool],
        tokens: Rounds,
        limits: AgentLimits,
        ledger: Ledger,
        calls: Calls,
    ) -> None:
        self._context = context
        self._model = model
        self._request = request
        self._tools = tools
        self._tokens = tokens
        self._limits = limits
        self._ledger = ledger
        self._calls = calls
        self._messages: list[dict[str, Any]] = list(request.messages)
        self._answers: list[Answer] = []
        self._began = time.monotonic()
        #: Milliseconds that earlier attempts have taken.
        self._spent_ms = 0

    async def run(self) -> AgentResult:
        """Round after round."""
        number = 0
        while True:
            number += 1
            answer = self._recall(number)
            if answer is None:
                if self._context.cancel_requested:
                    return self._finish(CANCELED)
                if self._left_s <= 0:
                    return self._finish(AgentEnd.MAX_TIME.value)
                answer = await self._ask(number)
                if answer.calls and self._may_call(number):
                    answer = replace(answer, at_ms=self._elapsed_ms)
                    await self._ledger.write(_name(number), answer.to_json())
            self._answers.append(answer)
            if not answer.calls:
                limit = AgentEnd.MAX_CALLS.value if self._calls.refused else None
                own = answer.finish_reason
                return self._finish(own if own in _OURS or limit is None else limit)
            if not self._may_call(number):
                spent = self._calls.refused or self._calls.exhausted
                return self._finish((AgentEnd.MAX_CALLS if spent else AgentEnd.MAX_ROUNDS).value)
            over = await self._call(number, answer)
            if over is not None:
                return self._finish(over)
            await self._tokens.next_round()

    def _recall(self, number: int) -> Answer | None:
        """The answer of an earlier attempt."""
        saved = self._ledger.read(_name(number))
        if saved is None:
            return None
        answer = Answer.from_json(saved)
        self._spent_ms = answer.at_ms + self._calls.recalled_ms(number, answer)
        return answer

    def _may_call(self, number: int) -> bool:
        """Whether calls of this round are of use: there is a round left to tell the model."""
        calls = self._calls
        return number < self._limits.rounds and not calls.refused and not calls.exhausted

    async def _ask(self, number: int) -> Answer:
        """The model's next answer, or what there is of it when the time is up."""
        usable = self._calls.usable
        request = replace(
            self._request,
            messages=list(self._messages),
            tools=talk.functions(usable or self._tools) or None,
            tool_choice=self._choice(number, usable),
        )
        names = {name for tool in self._tools for name in (tool.wire_name, tool.name)}
        listening = Listening(self._tokens, names)
        asking = asyncio.ensure_future(self._model.complete(self._context, request, listening))
        try:
            await asyncio.wait({asking}, timeout=max(self._left_s, 0.0))
            if not asking.done():
                model = self._answers[-1].model if self._answers else ""
                end = AgentEnd.MAX_TIME.value
                return Answer(listening.said, end, model, reasoning=listening.thought)
            completion = asking.result()
        finally:
            if not asking.done():
                await cancel(asking)
        spoken = await listening.end(number)
        if completion.canceled:
            return Answer.of(completion, completion.text, ())
        text = listening.said if spoken else completion.text
        return Answer.of(completion, text, completion.tool_calls or spoken)

    def _choice(self, number: int, usable: Sequence[Tool]) -> str | dict[str, Any] | None:
        if not self._tools:
            return None
        if not usable or not self._may_call(number):
            return talk.NO_CALLS
        wanted = self._request.tool_choice
        if isinstance(wanted, dict) or wanted == _REQUIRED:
            return talk.with_wire_name(wanted, usable) if number == 1 else talk.AUTO
        return wanted

    async def _call(self, number: int, answer: Answer) -> str | None:
        """Make an answer's calls; returns why the run is over, if it is."""
        self._messages.append(talk.asked(answer.text, answer.calls))
        deadline = time.monotonic() + self._left_s
        results, over = await self._calls.make(number, answer, deadline)
        self._messages += [talk.told(call, text) for call, text in results]
        return over

    @property
    def _elapsed_ms(self) -> int:
        return self._spent_ms + int((time.monotonic() - self._began) * 1000)

    @property
    def _left_s(self) -> float:
        left_s = self._limits.seconds - self._elapsed_ms / 1000
        remaining_s = self._context.remaining_s
        return left_s if remaining_s is None else min(left_s, remaining_s - MARGIN_S)

    def _finish(self, reason: str) -> AgentResult:
        answers = self._answers
        last = answers[-1] if answers else Answer("", reason, "")
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
_OURS = frozenset({CANCELED, AgentEnd.MAX_TIME.value})


def _name(number: int) -> str:
    return f"agent.{number}"
