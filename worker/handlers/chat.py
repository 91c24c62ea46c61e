"""The task `chat`: a model's answer, streamed; free text, JSON of a given form, or tool calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from common import codec
from common.contracts import values_of
from common.contracts.jobs import Task
from common.contracts.models import AgentFinishReason, ModelStep
from worker.errors import InvalidPayload
from worker.execution.concurrency import call_in_thread
from worker.execution.context import JobContext
from worker.features.agent.loop import run_agent
from worker.features.agent.types import AgentLimits, AgentResult
from worker.features.model.checker.checker import Checker, CheckLimitExceeded
from worker.features.model.errors import ModelRefused
from worker.features.model.output_parsing import (
    ChatModel,
    NoJsonFound,
    UnusableAnswer,
    find_json,
    request_usable_answer,
)
from worker.features.model.token_events import TokenStream, completion_result
from worker.features.model.types import CANCELED, ChatRequest, Completion
from worker.handlers.chat_payload import ChatPayload, ResponseFormat
from worker.registry import Registry

if TYPE_CHECKING:
    from common.settings.worker import WorkerSettings
    from worker.features.shared import SharedServices

#: Where the schema stands in a payload.
_SCHEMA = "response_format.json_schema.schema"
_SYSTEM = "system"


class AnswerFormat:
    """Free text, any JSON object, or JSON that fits a schema."""

    def __init__(self, asked: ResponseFormat | None, checker: Checker) -> None:
        #: Whether it is to be JSON at all.
        self.is_json = asked is not None and asked.type != "text"
        self._schema = None if asked is None else asked.json_schema
        self._checker = checker

    async def check(self) -> None:
        """Refuse a schema that is none, or that nothing can be checked against."""
        if self._schema is not None:
            try:
                faults = await self._checker.schema_faults(self._schema.schema_)
            except CheckLimitExceeded as error:
                raise InvalidPayload(f"{_SCHEMA}: {error}") from None
            if faults:
                raise InvalidPayload(f"{_SCHEMA}: {'; '.join(faults)}")

    async def read(self, completion: Completion, last: bool) -> Any:
        """The value of an answer; raises Unusable."""
        if not self.is_json or completion.tool_calls:
            return None
        try:
            value = await call_in_thread(find_json, completion.text)
        except NoJsonFound as error:
            raise UnusableAnswer(str(error), self._hint()) from None
        faults = await self._faults(value)
        if faults:
            raise UnusableAnswer("; ".join(faults), self._hint())
        return value

    async def _faults(self, value: Any) -> list[str]:
        if self._schema is None:
            return [] if isinstance(value, dict) else ["it is no JSON object"]
        try:
            return await self._checker.value_faults(self._schema.schema_, value)
        except CheckLimitExceeded as error:
            raise InvalidPayload(f"{_SCHEMA}: {error}") from None

    def with_prompt_hint(self, request: ChatRequest) -> ChatRequest | None:
        """`request` for a model that is told the form and not held to it; None if there is none."""
        if not self.is_json:
            return None
        first, *rest = request.messages
        told = [{"role": _SYSTEM, "content": self._hint()}, first]
        if first["role"] == _SYSTEM:
            told = [{**first, "content": f"{first['content']}\n\n{self._hint()}"}]
        return replace(request, messages=[*told, *rest], response_format=None)

    def _hint(self) -> str:
        """What a server without grammars has not told its model."""
        if self._schema is None:
            return "Answer with one JSON object and nothing else."
        schema = codec.dumps(self._schema.schema_).decode()
        return f"Answer with JSON and nothing else, as this JSON Schema wants it: {schema}"


_DEFAULT_LIMITS = AgentLimits()
#: How an agent ends whose answer is not its last word.
_LIMITS = frozenset(values_of(AgentFinishReason))
_UNFINISHED = _LIMITS | {CANCELED}


def register(registry: Registry, settings: WorkerSettings, shared: SharedServices) -> None:
    add_handler(registry, shared.model, shared.checker, AgentLimits.of(settings))


def add_handler(
    registry: Registry, model: ChatModel, checker: Checker, limits: AgentLimits = _DEFAULT_LIMITS
) -> None:
    """Let `model` answer the task `chat`, with the registry's tools if the request names some."""

    async def chat(context: JobContext, payload: ChatPayload) -> dict[str, Any]:
        check_model_name(model, payload.model)
        form = AnswerFormat(payload.response_format, checker)
        await form.check()
        request = build_request(payload)
        plain = form.with_prompt_hint(request)
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
                completion, value = await request_usable_answer(
                    context, model, request, tokens, form.read, plain=plain, first=first
                )
            await tokens.usage(completion)
        result = completion_result(context, completion)
        unfinished = completion.tool_calls or completion.finish_reason in _UNFINISHED
        if form.is_json and not unfinished:
            result["json"] = value
        if worked is not None:
            result["steps"] = [step.view() for step in worked.steps]
            result["rounds"] = worked.rounds
        return result

    registry.add(Task.CHAT.value, chat)


def check_model_name(model: ChatModel, wanted: str | None) -> None:
    """There is one model; a request that names another would be answered by the wrong one."""
    if wanted and model.name and wanted != model.name:
        raise ModelRefused(
            f"there is no model {wanted!r} here; leave `model` out or name {model.name!r}"
        )


def build_request(payload: ChatPayload) -> ChatRequest:
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
