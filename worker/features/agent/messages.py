"""Tool-related messages in the format of OpenAI's chat API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sluice.worker.features.model.types import ToolCall
from sluice.worker.features.tools.tool import Tool

#: Values of `tool_choice`: the model decides, or no calls.
AUTO, NO_CALLS = "auto", "none"


def tool_definitions(tools: Iterable[Tool]) -> list[dict[str, Any]]:
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
    """The model's answer as a message of the conversation."""
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
    """Replace a tool's name in `choice` by its wire name.

    Falls back to "auto" if the tool is unknown.
    """
    if not isinstance(choice, dict):
        return choice
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    for tool in tools:
        if name in (tool.name, tool.wire_name):
            return {"type": "function", "function": {"name": tool.wire_name}}
    return AUTO
