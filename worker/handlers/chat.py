"""The task `chat`: a streamed model answer as text, as JSON, or with tool calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sluice.common import codec
from sluice.common.contracts import values_of
from sluice.common.contracts.jobs import Task
from sluice.common.contracts.models import AgentFinishReason, ModelStep
from sluice.worker.errors import InvalidPayload
from sluice.worker.execution.concurrency import call_in_thread
from sluice.worker.execution.context import JobContext
from sluice.worker.features.agent.loop import run_agent
from sluice.worker.features.agent.types import AgentLimits, AgentResult
from sluice.worker.features.model.checker.checker import Checker, CheckLimitExceeded
from sluice.worker.features.model.errors import ModelRefused
from sluice.worker.features.model.output_parsing import (
    ChatModel,
    NoJsonFound,
    UnusableAnswer,
    find_json,
    request_usable_answer,
)
from sluice.worker.features.model.token_events import TokenStream, completion_result
from sluice.worker.features.model.types import CANCELED, ChatRequest, Completion
from sluice.worker.handlers.chat_payload import ChatPayload, ResponseFormat
from sluice.worker.registry import Registry

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings
    from sluice.worker.features.shared import SharedServices

#: Path of the schema in a payload, for messages.
_SCHEMA = "response_format.json_schema.schema"
_SYSTEM = "system"


class AnswerFormat:
    """Requested format: text, any JSON object, or JSON that matches a schema."""

    def __init__(self, requested: ResponseFormat | None, checker: Checker) -> None:
        #: True if JSON was requested.
        self.is_json = requested is not None and requested.type != "text"
        self._schema = None if requested is None else requested.json_schema
        self._checker = checker

    async def check(self) -> None:
        """Raise InvalidPayload if the schema is invalid or cannot be checked."""
        if self._schema is not None:
            try:
                faults = await self._checker.schema_faults(self._schema.schema_)
            except CheckLimitExceeded as error:
                raise InvalidPayload(f"{_SCHEMA}: {error}") from None
            if faults:
                raise InvalidPayload(f"{_SCHEMA}: {'; '.join(faults)}")

    async def read(self, completion: Completion, last: bool) -> Any:
        """Parse an answer; raises UnusableAnswer."""
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
            return [] if isinstance(value, dict) else ["it is not a JSON object"]
        try:
            return await self._checker.value_faults(self._schema.schema_, value)
        except CheckLimitExceeded as error:
            raise InvalidPayload(f"{_SCHEMA}: {error}") from None

    def with_prompt_hint(self, request: ChatRequest) -> ChatRequest | None:
        """The request with the format in its prompt, not in `response_format`; None for text."""
        if not self.is_json:
            return None
        first, *rest = request.messages
        leading = [{"role": _SYSTEM, "content": self._hint()}, first]
        if first["role"] == _SYSTEM:
            leading = [{**first, "content": f"{first['content']}\n\n{self._hint()}"}]
        return replace(request, messages=[*leading, *rest], response_format=None)

    def _hint(self) -> str:
        """Prompt for servers that cannot enforce a format."""
        if self._schema is None:
            return "Answer with one JSON object and nothing else."
        schema = codec.dumps(self._schema.schema_).decode()
        return f"Answer with JSON and nothing else, as this JSON Schema wants it: {schema}"


_DEFAULT_LIMITS = AgentLimits()
#: Finish reasons of an agent whose answer is incomplete.
_LIMITS = frozenset(values_of(AgentFinishReason))
_UNFINISHED = _LIMITS | {CANCELED}


def register(registry: Registry, settings: WorkerSettings, shared: SharedServices) -> None:
    add_handler(registry, shared.model, shared.checker, AgentLimits.of(settings))


def add_handler(
    registry: Registry, model: ChatModel, checker: Checker, limits: AgentLimits = _DEFAULT_LIMITS
) -> None:
    """Register the task `chat`; requests may use the tools of the registry."""

    async def chat(context: JobContext, payload: ChatPayload) -> dict[str, Any]:
        check_model_name(model, payload.model)
        form = AnswerFormat(payload.response_format, checker)
        await form.check()
        request = build_request(payload)
        plain = form.with_prompt_hint(request)
        agent_result: AgentResult | None = None
        async with TokenStream(context, ModelStep.CHAT) as tokens:
            if names := payload.tool_names:
                # Few servers can enforce a format and offer tools in one request.
                agent_result = await run_agent(
                    context, model, registry.toolbox, plain or request, names, tokens, limits
                )
                request = replace(request, tool_choice=None)
            first = None if agent_result is None else agent_result.completion
            if first is not None and first.finish_reason in _LIMITS:
                completion, value = first, None  # no time left for another answer
            else:
                completion, value = await request_usable_answer(
                    context, model, request, tokens, form.read, plain=plain, first=first
                )
            await tokens.usage(completion)
        result = completion_result(context, completion)
        unfinished = completion.tool_calls or completion.finish_reason in _UNFINISHED
        if form.is_json and not unfinished:
            result["json"] = value
        if agent_result is not None:
            result["steps"] = [step.view() for step in agent_result.steps]
            result["rounds"] = agent_result.rounds
        return result

    registry.add(Task.CHAT.value, chat)


def check_model_name(model: ChatModel, name: str | None) -> None:
    """Raise ModelRefused if a request names another model than the available one."""
    if name and model.name and name != model.name:
        raise ModelRefused(f"there is no model {name!r}; omit `model` or use {model.name!r}")


def build_request(payload: ChatPayload) -> ChatRequest:
    """Convert a payload to a model request, without tools of the worker."""
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
