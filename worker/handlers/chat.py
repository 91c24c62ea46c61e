"""The task `chat`: a model's answer, streamed; free text, JSON of a given form, or tool calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from common.contracts.jobs import Task
from common.contracts.models import ModelStep
from common.contracts.tools import AgentEnd
from worker.agent.loop import run_agent
from worker.agent.types import AgentLimits, AgentResult
from worker.context import JobContext
from worker.handlers.answer_form import Form
from worker.handlers.chat_payload import ChatPayload
from worker.model.checker import Checker
from worker.model.errors import ModelRefused
from worker.model.results import result_of
from worker.model.rounds import Model, ask
from worker.model.tokens import TokenStream
from worker.model.types import CANCELED, ChatRequest
from worker.registry import Registry

_USUAL = AgentLimits()
#: How an agent ends whose answer is not its last word.
_LIMITS = frozenset(end.value for end in AgentEnd)
_UNFINISHED = _LIMITS | {CANCELED}


def register(
    registry: Registry, model: Model, checker: Checker, limits: AgentLimits = _USUAL
) -> None:
    """Let `model` answer the task `chat`, with the registry's tools if the request names some."""

    async def chat(context: JobContext, payload: ChatPayload) -> dict[str, Any]:
        refuse_other_model(model, payload.model)
        form = Form(payload.response_format, checker)
        await form.check()
        request = request_of(payload)
        plain = form.in_words(request)
        worked: AgentResult | None = None
        async with TokenStream(context, ModelStep.CHAT) as tokens:
            if names := payload.tool_names:
                # Few servers can hold a model to a form and let it call tools at once.
                worked = await run_agent(
                    context, model, registry.toolbox, plain or request, names, tokens, limits
                )
                request = replace(request, tool_choice=None)
            first = None if worked is None else worked.completion
            if first is not None and first.finish_reason in _LIMITS:
                completion, value = first, None  # there is no time, or no end, for another answer
            else:
                completion, value = await ask(
                    context, model, request, tokens, form.read, plain=plain, first=first
                )
            await tokens.usage(completion)
        result = result_of(context, completion)
        unfinished = completion.tool_calls or completion.finish_reason in _UNFINISHED
        if form.wanted and not unfinished:
            result["json"] = value
        if worked is not None:
            result["steps"] = [step.view() for step in worked.steps]
            result["rounds"] = worked.rounds
        return result

    registry.add(Task.CHAT.value, chat)


def refuse_other_model(model: Model, wanted: str | None) -> None:
    """There is one model; a request that names another would be answered by the wrong one."""
    if wanted and model.name and wanted != model.name:
        raise ModelRefused(
            f"there is no model {wanted!r} here; leave `model` out or name {model.name!r}"
        )


def request_of(payload: ChatPayload) -> ChatRequest:
    """The payload as a request to a model, without tools of the worker's."""
    form, choice = payload.response_format, payload.tool_choice
    return ChatRequest(
        messages=payload.conversation(),
        max_tokens=payload.max_tokens,
        temperature=payload.temperature,
        top_p=payload.top_p,
        stop=payload.stop,
        seed=payload.seed,
        presence_penalty=payload.presence_penalty,
        frequency_penalty=payload.frequency_penalty,
        response_format=form.view() if form is not None else None,
        tools=payload.functions or None,
        tool_choice=choice if choice is None or isinstance(choice, str) else choice.model_dump(),
    )
