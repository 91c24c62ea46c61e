"""Request members: which are supported, how they are passed on, how others are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.features.openai.chat.request import UNSUPPORTED_MEMBERS, ChatRequest
from gateway.features.openai.validation import parse_body
from gateway.http.problems import Problem
from tests.gateway.conftest import Gateway
from tests.gateway.features.openai.kit import HELLO, error_in, send, work

USER = HELLO["messages"][0]
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "what time it is",
        "parameters": {"type": "object", "properties": {"zone": {"default": None}}},
        "strict": False,
    },
}
SCHEMA = {"type": "object", "properties": {"a": {"default": None}}, "required": ["a"]}
CALL = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}


def payload_of(**members: Any) -> dict[str, Any]:
    return parse_body(ChatRequest, {**HELLO, **members}, UNSUPPORTED_MEMBERS).payload()


def messages_of(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = payload_of(messages=list(messages))["messages"]
    return found


PASSED_ON: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "model": ({"model": "a/b:c"}, {"model": "a/b:c"}),
    "tokens": ({"max_tokens": 5}, {"max_tokens": 5}),
    "tokens by the new name": ({"max_completion_tokens": 5}, {"max_tokens": 5}),
    "tokens twice": ({"max_completion_tokens": 5, "max_tokens": 5}, {"max_tokens": 5}),
    "numbers": (
        {"temperature": 0, "top_p": 0.5, "seed": -3, "presence_penalty": -2},
        {"temperature": 0, "top_p": 0.5, "seed": -3, "presence_penalty": -2},
    ),
    "one stop": ({"stop": "END"}, {"stop": ["END"]}),
    "stops": ({"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
    "no stops": ({"stop": []}, {}),
    "functions": (
        {"tools": [CLOCK], "tool_choice": "required"},
        {"tools": [CLOCK], "tool_choice": "required"},
    ),
    "one function": (
        {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "clock"}}},
        {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "clock"}}},
    ),
    "tools of Sluice": ({"tools": ["clock", "web"]}, {"tools": ["clock", "web"]}),
    "no tools": ({"tools": [], "tool_choice": "none"}, {}),
    "JSON": ({"response_format": {"type": "json_object"}},) * 2,
    "a schema": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA, "strict": True, "description": "d"},
            }
        },
    )
    * 2,
    "ignored members": (
        {
            "user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto",
            "safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h",
            "parallel_tool_calls": False, "stream": True, "n": 1, "logprobs": False,
            "top_logprobs": 0, "logit_bias": {}, "modalities": ["text"],
            "stream_options": {"include_usage": True, "include_obfuscation": False},
        },
        {},
    ),
    "null": (dict.fromkeys(set(ChatRequest.model_fields) - {"messages"}), {}),
}  # fmt: skip


@pytest.mark.parametrize(("members", "expected"), PASSED_ON.values(), ids=list(PASSED_ON))
def test_supported_members_are_passed_to_the_worker(
    members: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert payload_of(**members) == {**HELLO, **expected}


def test_messages_are_normalised() -> None:
    assert messages_of(
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
    ) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "a\nb"},
        {"role": "user", "content": "c", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
    ]


def test_a_message_dumped_by_the_sdk_is_accepted() -> None:
    """`messages.append(answer.choices[0].message)` sends every member of the answer."""
    dumped = {
        "content": "hi",
        "refusal": None,
        "role": "assistant",
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
        "reasoning_content": "hm",
    }
    refused = {"role": "assistant", "content": None, "refusal": "no", "tool_calls": []}
    parsed = {**CALL, "index": 0}
    parsed["function"] = {**CALL["function"], "parsed_arguments": {}}  # type: ignore[dict-item]
    calling = {"role": "assistant", "content": "", "tool_calls": [parsed], "parsed": None}
    empty = {"role": "assistant", "content": None}
    assert messages_of(USER, dumped, refused, calling, empty) == [
        USER,
        {"role": "assistant", "content": "hi"},
        {"role": "assistant", "content": "no"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "assistant", "content": ""},
    ]


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
REFUSALS: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "no messages": ({"messages": None}, "invalid_type", "messages"),
    "none at all": ({"messages": []}, "invalid_value", "messages"),
    "too many": ({"messages": [USER] * 2001}, "invalid_value", "messages"),
    "a text": ({"messages": "hi"}, "invalid_type", "messages"),
    "no role": ({"messages": [{"content": "x"}]}, "invalid_value", "messages[0]"),
    "another role": (
        {"messages": [USER, {"role": "function", "content": "x"}]},
        "invalid_value",
        "messages[1]",
    ),
    "no content": (
        {"messages": [{"role": "user"}]},
        "missing_required_parameter",
        "messages[0].content",
    ),
    "a number": (
        {"messages": [{"role": "user", "content": 5}]},
        "invalid_type",
        "messages[0].content",
    ),
    "an image": (
        {"messages": [USER, {"role": "user", "content": [{"type": "text", "text": "x"}, IMAGE]}]},
        "unsupported_value",
        "messages[1].content",
    ),
    "an image member": (
        {"messages": [{"role": "user", "content": "x", "images": []}]},
        "unknown_parameter",
        "messages[0].images",
    ),
    "a part without text": (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "missing_required_parameter",
        "messages[0].content[0].text",
    ),
    "audio in the history": (
        {"messages": [{"role": "assistant", "content": "x", "audio": {"id": "a"}}]},
        "invalid_value",
        "messages[0].audio",
    ),
    "several answers": ({"n": 2}, "unsupported_parameter", "n"),
    "probabilities": ({"logprobs": True}, "unsupported_parameter", "logprobs"),
    "biases": ({"logit_bias": {"5": 1.0}}, "unsupported_parameter", "logit_bias"),
    "speech": ({"modalities": ["text", "audio"]}, "unsupported_parameter", "modalities"),
    "old functions": ({"functions": [{}]}, "unsupported_parameter", "functions"),
    "effort": ({"reasoning_effort": "low"}, "unsupported_parameter", "reasoning_effort"),
    "an unknown member": ({"top_k": 5}, "unknown_parameter", "top_k"),
    "heat": ({"temperature": 3}, "invalid_value", "temperature"),
    "text for a number": ({"temperature": "1"}, "invalid_type", "temperature"),
    "a truth for a number": ({"max_tokens": True}, "invalid_type", "max_tokens"),
    "no tokens": ({"max_tokens": 0}, "invalid_value", "max_tokens"),
    "two lengths": ({"max_tokens": 1, "max_completion_tokens": 2}, "invalid_value", "max_tokens"),
    "mixed tools": ({"tools": [CLOCK, "clock"]}, "invalid_type", "tools[1]"),
    "another kind of tool": (
        {"tools": [{"type": "custom", "custom": {"name": "x"}}]},
        "invalid_value",
        "tools[0].type",
    ),
    "a choice of nothing": ({"tool_choice": "auto"}, "invalid_value", "tool_choice"),
    "another choice": (
        {"tools": [CLOCK], "tool_choice": {"type": "allowed_tools"}},
        "invalid_value",
        "tool_choice",
    ),
    "options of no stream": (
        {"stream_options": {"include_usage": True}},
        "invalid_value",
        "stream_options",
    ),
    "a format without a schema": (
        {"response_format": {"type": "json_schema"}},
        "missing_required_parameter",
        "response_format.json_schema",
    ),
    "another format": ({"response_format": {"type": "xml"}}, "invalid_value", "response_format"),
}


@pytest.mark.parametrize(("members", "code", "param"), REFUSALS.values(), ids=list(REFUSALS))
async def test_invalid_requests_are_rejected(
    fake_gateway: Gateway, members: dict[str, Any], code: str, param: str | None
) -> None:
    before = await fake_gateway.snapshot()
    error = error_in(await send(fake_gateway, {**HELLO, **members}), 400, code)
    assert error["type"] == "invalid_request_error"
    assert (error["param"] or "").startswith(param or "")
    assert await fake_gateway.snapshot() == before


def test_every_unsupported_member_is_documented() -> None:
    for member in UNSUPPORTED_MEMBERS:
        with pytest.raises(Problem) as refusal:
            payload_of(**{member: ["x"]})
        assert refusal.value.code == "unsupported_parameter"
        assert f"`{member}`" in refusal.value.detail
        assert ChatRequest.model_fields[member].description


async def test_messages_may_have_the_maximum_payload_size(fake_gateway: Gateway) -> None:
    """Close to the limit of the payload."""
    text = "x" * (fake_gateway.state.settings.max_payload_bytes - 100)
    work_item = await work(fake_gateway, {"messages": [{"role": "user", "content": text}]})
    assert len(json.dumps(await work_item.payload())) > len(text)
    await work_item.finish()
    assert (await work_item.answer()).status == 200
