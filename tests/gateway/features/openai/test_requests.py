"""Request members: which are supported, how they are passed on, how others are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.features.openai.chat.request import UNSUPPORTED_MEMBERS, ChatRequest
from gateway.features.openai.validation import parse_body
from gateway.http.problems import Problem
from tests.support.gateway.harness import Gateway
from tests.support.gateway.openai import HELLO, error_in, send, work

pytestmark = pytest.mark.fakeredis_only

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
USER_PART = {"role": "user", "content": [{"type": "text"}]}
AUDIO = {"role": "assistant", "content": "x", "audio": {"id": "a"}}
CUSTOM = {"type": "custom", "custom": {"name": "x"}}


def said(*messages: object) -> dict[str, Any]:
    return {"messages": list(messages)}


#: By member of the request: what is sent, the code of the error, and its parameter.
REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": None}, "invalid_type", "messages"),
    ({"messages": []}, "invalid_value", "messages"),
    ({"messages": [USER] * 2001}, "invalid_value", "messages"),
    ({"messages": "hi"}, "invalid_type", "messages"),
    (said({"content": "x"}), "invalid_value", "messages[0]"),
    (said(USER, {"role": "function", "content": "x"}), "invalid_value", "messages[1]"),
    (said({"role": "user"}), "missing_required_parameter", "messages[0].content"),
    (said({"role": "user", "content": 5}), "invalid_type", "messages[0].content"),
    (said(USER, {"role": "user", "content": [IMAGE]}), "unsupported_value", "messages[1].content"),
    (said({**USER, "images": []}), "unknown_parameter", "messages[0].images"),
    (said(USER_PART), "missing_required_parameter", "messages[0].content[0].text"),
    (said(AUDIO), "invalid_value", "messages[0].audio"),
    ({"n": 2}, "unsupported_parameter", "n"),
    ({"logprobs": True}, "unsupported_parameter", "logprobs"),
    ({"logit_bias": {"5": 1.0}}, "unsupported_parameter", "logit_bias"),
    ({"modalities": ["text", "audio"]}, "unsupported_parameter", "modalities"),
    ({"functions": [{}]}, "unsupported_parameter", "functions"),
    ({"reasoning_effort": "low"}, "unsupported_parameter", "reasoning_effort"),
    ({"top_k": 5}, "unknown_parameter", "top_k"),
    ({"temperature": 3}, "invalid_value", "temperature"),
    ({"temperature": "1"}, "invalid_type", "temperature"),
    ({"max_tokens": True}, "invalid_type", "max_tokens"),
    ({"max_tokens": 0}, "invalid_value", "max_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "invalid_value", "max_tokens"),
    ({"tools": [CLOCK, "clock"]}, "invalid_type", "tools[1]"),
    ({"tools": [CUSTOM]}, "invalid_value", "tools[0].type"),
    ({"tool_choice": "auto"}, "invalid_value", "tool_choice"),
    ({"tools": [CLOCK], "tool_choice": {"type": "allowed_tools"}}, "invalid_value", "tool_choice"),
    ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
    ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "response_format"),
    ({"response_format": {"type": "xml"}}, "invalid_value", "response_format"),
]


async def test_invalid_requests_are_rejected(gateway: Gateway) -> None:
    before = await gateway.snapshot()
    for members, code, param in REFUSALS:
        error = error_in(await send(gateway, {**HELLO, **members}), 400, code)
        assert error["type"] == "invalid_request_error"
        assert (error["param"] or "").startswith(param), members
    assert await gateway.snapshot() == before


def test_every_unsupported_member_is_documented() -> None:
    for member in UNSUPPORTED_MEMBERS:
        with pytest.raises(Problem) as refusal:
            payload_of(**{member: ["x"]})
        assert refusal.value.code == "unsupported_parameter"
        assert f"`{member}`" in refusal.value.detail
        assert ChatRequest.model_fields[member].description


async def test_messages_may_have_the_maximum_payload_size(gateway: Gateway) -> None:
    """Close to the limit of the payload."""
    text = "x" * (gateway.state.settings.max_payload_bytes - 100)
    work_item = await work(gateway, {"messages": [{"role": "user", "content": text}]})
    assert len(json.dumps(await work_item.payload())) > len(text)
    await work_item.finish()
    assert (await work_item.answer()).status == 200
