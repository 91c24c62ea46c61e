"""The part of OpenAI's dialect that has to do with tools: how they are offered and told of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from worker.features.model.types import ToolCall
from worker.features.tools.tool import Tool

#: For the model to choose, or not to call anything.
AUTO, NO_CALLS = "auto", "none"


def tool_definitions(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """Tools as a request offers them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.wire_name,
                "description": tool.description,
                "parameters": tool.parameters,
            },
        }
        for tool in tools
    ]


def assistant_message(text: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """The model's answer, as it is told later what it has said."""
    return {
        "role": "assistant",
        "content": text or None,
        "tool_calls": [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ],
    }


def tool_message(call: ToolCall, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}


def resolve_tool_choice(
    choice: str | dict[str, Any], tools: Iterable[Tool]
) -> str | dict[str, Any]:
    """A choice of one function, by the name under which the model knows it."""
    if not isinstance(choice, dict):
        return choice
    function = choice.get("function")
    wanted = function.get("name") if isinstance(function, dict) else None
    for tool in tools:
        if wanted in (tool.name, tool.wire_name):
            return {"type": "function", "function": {"name": tool.wire_name}}
    return AUTO
