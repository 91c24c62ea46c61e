"""The result of a chat job as OpenAI's `chat.completion`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sluice.common.contracts import values_of
from sluice.common.contracts.models import AgentFinishReason
from sluice.gateway.features.openai.errors import answer_invalid

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
_REASONS: dict[str, FinishReason] = {
    **dict.fromkeys(values_of(AgentFinishReason), "length"),  # the agent stopped before it was done
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}


class _Result(BaseModel):
    """Base of models for a job's result. A third-party worker may leave out members."""

    model_config = ConfigDict(extra="ignore")


class FunctionCallView(_Result):
    """A function call; the arguments are JSON as text."""

    name: str
    arguments: str


class ToolCallView(_Result):
    """A tool call for the client."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCallView


class ResultUsage(_Result):
    """Token counts in a job's result."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0


class ChatResult(_Result):
    """The result of a chat job."""

    text: str = ""
    finish_reason: str = "stop"
    usage: ResultUsage | None = None
    model: str = ""
    reasoning: str | None = None
    tool_calls: list[ToolCallView] | None = None
    ms: int | None = None
    first_token_ms: int | None = None
    tokens_per_s: float | None = None


class CachedTokens(BaseModel):
    """Details of the prompt's tokens."""

    cached_tokens: int


class UsageView(BaseModel):
    """Token counts of a completion."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens

    @classmethod
    def of(cls, usage: ResultUsage) -> UsageView:
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.total_tokens or usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details=CachedTokens(cached_tokens=usage.cached_tokens),
        )


class ChatJobInfo(BaseModel):
    """Members that OpenAI's API does not have."""

    job_id: str = Field(description="The job of the completion; see /v1/jobs.")
    finish_reason: str = Field(description="The finish reason in the job's result.")
    ms: int | None = Field(None, description="Milliseconds of the model.")
    first_token_ms: int | None = Field(None, description="Milliseconds until the first token.")
    tokens_per_s: float | None = None

    @classmethod
    def of(cls, job_id: str, result: ChatResult) -> ChatJobInfo:
        return cls(
            job_id=job_id,
            finish_reason=result.finish_reason,
            ms=result.ms,
            first_token_ms=result.first_token_ms,
            tokens_per_s=result.tokens_per_s,
        )


class AnswerMessage(BaseModel):
    """The message of the model."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = Field(None, description="Reasoning before the answer, if any.")
    tool_calls: list[ToolCallView] | None = None


class CompletionChoice(BaseModel):
    """The only choice."""

    index: Literal[0] = 0
    message: AnswerMessage
    logprobs: None = None
    finish_reason: FinishReason


class ChatCompletion(BaseModel):
    """A complete answer."""

    id: str = Field(examples=["chatcmpl-6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"])
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(description="Unix seconds.")
    model: str
    choices: list[CompletionChoice]
    usage: UsageView | None = Field(None, description="Absent if the worker does not report it.")
    sluice: ChatJobInfo


def completion_id(job_id: str) -> str:
    """The id of a completion, derived from the job's."""
    return f"chatcmpl-{job_id}"


def chat_result(result: Any) -> ChatResult:
    """The parsed result of a chat job; raises a problem for any other."""
    try:
        return ChatResult.model_validate(result)
    except ValidationError:
        raise answer_invalid("a chat") from None


def finish_reason(result: ChatResult) -> FinishReason:
    """OpenAI's finish reason; `stop` for reasons that OpenAI does not have."""
    return _REASONS.get(result.finish_reason, "stop")


def client_tool_calls(result: ChatResult, *, in_parallel: bool) -> list[ToolCallView]:
    """The tool calls for the client: all, or only the first."""
    calls = result.tool_calls or []
    return calls if in_parallel else calls[:1]


def completion(
    job_id: str, created_s: int, result: ChatResult, model: str, *, in_parallel: bool
) -> bytes:
    calls = client_tool_calls(result, in_parallel=in_parallel)
    message = AnswerMessage(content=result.text or (None if calls else ""))
    if result.reasoning:
        message.reasoning_content = result.reasoning
    if calls:
        message.tool_calls = calls
    view = ChatCompletion(
        id=completion_id(job_id),
        created=created_s,
        model=result.model or model,
        choices=[CompletionChoice(message=message, finish_reason=finish_reason(result))],
        sluice=ChatJobInfo.of(job_id, result),
    )
    if result.usage is not None:
        view.usage = UsageView.of(result.usage)
    return view.model_dump_json(exclude=_left_out(message)).encode()


def _left_out(message: AnswerMessage) -> Any:
    """Members that are left out instead of null."""
    empty = {name for name in ("reasoning_content", "tool_calls") if not getattr(message, name)}
    return {"choices": {0: {"message": empty}}} if empty else None
