"""An answer as the result of a job."""

from __future__ import annotations

from typing import Any

from worker.context import JobContext
from worker.model.tokens import clean
from worker.model.types import Completion, ToolCall


def result_of(context: JobContext, completion: Completion) -> dict[str, Any]:
    """What every task tells of its answer."""
    result: dict[str, Any] = {
        "text": clean(completion.text),
        "finish_reason": completion.finish_reason,
        "usage": completion.usage.view(),
        "ms": context.elapsed_ms,
        "first_token_ms": completion.first_token_ms,
        "tokens_per_s": completion.tokens_per_s,
        "model": completion.model,
    }
    if completion.reasoning:
        result["reasoning"] = clean(completion.reasoning)
    if completion.tool_calls:
        result["tool_calls"] = [call_view(call) for call in completion.tool_calls]
    return result


def call_view(call: ToolCall) -> dict[str, Any]:
    """A wanted call in OpenAI's words."""
    function = {"name": clean(call.name), "arguments": clean(call.arguments)}
    return {"id": clean(call.id), "type": "function", "function": function}
