"""Request members and errors of the OpenAI API: what is passed on, and how others are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from sluice.gateway.features.openai.chat.request import UNSUPPORTED_MEMBERS, ChatRequest
from sluice.gateway.features.openai.validation import parse_body
from sluice.gateway.http.error_formats import openai_error_view
from sluice.gateway.http.paths import is_openai
from sluice.gateway.http.problems import Problem
from tests.support.gateway.access import bearer, client_at, key_for
from tests.support.gateway.faults import raising
from tests.support.gateway.harness import CHAT as JOB
from tests.support.gateway.harness import Gateway, Make, check_problem
from tests.support.gateway.openai import CHAT, EMBEDDINGS, HELLO, MODELS, error_in, send, work

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
    return payload_of(messages=list(messages))["messages"]


PASSED_ON: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "model": ({"model": "a/b:c"}, {"model": "a/b:c"}),
    "tokens": ({"max_tokens": 5}, {"max_tokens": 5}),
    "tokens by the new name": ({"max_completion_tokens": 5}, {"max_tokens": 5}),
    "tokens twice": ({"max_completion_tokens": 5, "max_tokens": 5}, {"max_tokens": 5}),
    "numbers": ({"temperature": 0, "top_p": 0.5, "seed": -3, "presence_penalty": -2},) * 2,
    "one stop": ({"stop": "END"}, {"stop": ["END"]}),
    "stops": ({"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
    "no stops": ({"stop": []}, {}),
    "functions": ({"tools": [CLOCK], "tool_choice": "required"},) * 2,
    "one function": (
        {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "clock"}}},
    ) * 2,
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


def test_supported_members_are_passed_to_the_worker() -> None:
    for name, (members, expected) in PASSED_ON.items():
        assert payload_of(**members) == {**HELLO, **expected}, name


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
    dumped = {"role": "assistant", "content": "hi", "annotations": [], "reasoning_content": "hm"}
    dumped |= dict.fromkeys(("refusal", "audio", "function_call", "tool_calls"))
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


#: Kinds of job errors by the status of the response.
KINDS: dict[int, tuple[str, ...]] = {
    400: ("invalid_payload", "model_refused", "unknown_tool"),
    500: ("handler_error", "attempts_exhausted", "ZeroDivisionError"),
    502: ("model_failed", "model_stream_broken", "model_answer_invalid"),
    503: ("no_model", "no_embedder", "model_unavailable", "unknown_task", "tool_unavailable"),
    504: (
        *("timeout", "expired_before_start", "model_connect_timeout", "model_total_timeout"),
        *("model_first_token_timeout", "model_idle_timeout"),
    ),
}


async def test_a_failed_job_has_the_status_of_its_error_kind(gateway: Gateway) -> None:
    for status, kind in [(status, kind) for status, kinds in KINDS.items() for kind in kinds]:
        request = await work(gateway)
        await request.run()
        await request.fail(kind, "so and so")
        answer = await request.answer()
        error = error_in(answer, status, kind)
        assert error["message"] == "so and so"
        assert error["type"] == ("invalid_request_error" if status == 400 else "server_error")
        # SDKs retry by default, but the job has used its attempts.
        assert answer.header("x-should-retry") == "false"
        assert answer.header("x-job-id") == request.job_id
    for invalid in ("", "no json", "[1]", '{"kind":null}'):
        request = await work(gateway)
        await request.end("error", error=invalid)
        error = error_in(await request.answer(), 500, "handler_error")
        assert error["message"] == "the job failed"


async def test_a_full_queue_gets_429(make: Make) -> None:
    gateway = make(backpressure_max_backlog=1)
    await gateway.create()
    answer = await send(gateway, HELLO)
    error = error_in(answer, 429, "queue_full")
    assert error["type"] == "rate_limit_error"
    assert answer.header("retry-after")
    assert answer.header("retry-after-ms")
    assert answer.header("x-should-retry") is None


async def test_limits_of_keys_and_pressure_are_reported(strict: Gateway) -> None:
    slow = await key_for(strict, rate_per_min=1, burst=1)
    few = await key_for(strict, max_jobs=1)
    for key, code in ((slow, "rate_limit_exceeded"), (few, "quota_exceeded")):
        await strict.client.post(JOB, bearer(key))
        answer = await send(strict, HELLO, **bearer(key))
        assert error_in(answer, 429, code)["type"] == "rate_limit_error"
        assert answer.header("retry-after")
    key = await key_for(strict)
    strict.state.pressure.refusing = True
    for body, path in ((HELLO, CHAT), ({"input": "x"}, EMBEDDINGS)):
        error_in(await send(strict, body, path, **bearer(key)), 503, "under_pressure")


async def test_unreachable_redis_gets_503(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = raising(RedisConnectionError("away"))
    monkeypatch.setattr("sluice.gateway.observability.workers.read_heartbeats", away)
    answer = await send(gateway, HELLO)
    assert error_in(answer, 503, "store_unavailable")["type"] == "server_error"
    error_in(await gateway.client.get(MODELS), 503, "store_unavailable")


async def test_malformed_requests_are_rejected(make: Make) -> None:
    gateway = make(max_payload_bytes=2048)
    for path in (CHAT, EMBEDDINGS):
        for body, code in (
            (b"", "malformed_json"),
            (b"{", "malformed_json"),
            (b"[]", "invalid_type"),
            (b"[" * 70 + b"]" * 70, "nested_too_deep"),
        ):
            error_in(await send(gateway, body, path), 400, code)
    for size, code in ((3000, "payload_too_large"), (30_000, "body_too_large")):
        long = {"messages": [{"role": "user", "content": "x" * size}]}
        error_in(await send(gateway, long), 413, code)
    answer = await send(gateway, HELLO, content_type="text/plain")
    error_in(answer, 415, "unsupported_media_type")
    answer = await send(gateway, HELLO, idempotency_key=" ")
    error_in(answer, 400, "invalid_idempotency_key")
    answer = await gateway.client.get(CHAT)
    error_in(answer, 405, "method_not_allowed")
    assert answer.header("allow") == "POST"


async def test_other_paths_keep_the_problem_format(gateway: Gateway) -> None:
    check_problem(await gateway.client.get("/v1/modelsx"), 404, "not_found")
    check_problem(await gateway.client.get("/v1/chat"), 404, "not_found")
    check_problem(await gateway.client.post(b"{"), 400, "malformed_json")
    assert is_openai(CHAT)
    assert is_openai("/v1/models/a/b")
    assert not is_openai("/v1/embeddings/x")


def test_json_pointers_become_openai_parameter_names() -> None:
    for pointer, param in (
        ("", None),
        ("/messages", "messages"),
        ("/messages/12/content/3", "messages[12].content[3]"),
        ("/tools/0/function/name", "tools[0].function.name"),
    ):
        assert openai_error_view(400, "x", "y", pointer).error.param == param


# -- keys ------------------------------------------------------------------------------------------


async def test_a_missing_or_invalid_key_gets_401(strict: Gateway) -> None:
    for path in (CHAT, EMBEDDINGS):
        for headers in ({}, bearer("sk-local"), bearer("sluice_x")):
            answer = await send(strict, HELLO, path, **headers)
            error = error_in(answer, 401, "invalid_api_key")
            assert error["type"] == "invalid_request_error"
            assert "Bearer" in (answer.header("www-authenticate") or "")
    error_in(await strict.client.get(MODELS), 401, "invalid_api_key")


async def test_placeholder_keys_are_ignored_on_loopback(gateway: Gateway) -> None:
    remote = client_at(gateway)
    for filler in ("Bearer sk-local", "bearer none", "Bearer x y", "Bearer "):
        headers = {"authorization": filler}
        assert (await gateway.client.get(MODELS, headers)).status == 200
        # Not on other paths, not for one of Sluice's keys, not from other machines.
        check_problem(await gateway.client.get("/v1/status", headers), 401, "invalid_key")
        error_in(await remote.get(MODELS, headers), 401, "invalid_api_key")
    for credentials in (
        [("authorization", "Bearer sluice_oops")],
        [("authorization", "Bearer SLUICE_k3x9q2ab_x")],
        [("authorization", "Basic eDp5")],
        [("authorization", "Bearerx")],
        [("authorization", "Bearer a"), ("authorization", "Bearer b")],
    ):
        error_in(await gateway.client.get(MODELS, credentials), 401, "invalid_api_key")


async def test_a_sluice_key_counts_on_loopback_too(gateway: Gateway) -> None:
    key = await key_for(gateway, tenant="shop")
    request = await work(gateway, **bearer(key))
    other = await key_for(gateway, tenant="bakery")
    path_of_job = f"/v1/jobs/{request.job_id}"
    assert (await gateway.client.get(path_of_job, bearer(key))).status == 200
    check_problem(await gateway.client.get(path_of_job, bearer(other)), 404, "job_not_found")
    await request.finish()
    assert (await request.answer()).status == 200


async def test_both_scopes_and_the_task_are_required(strict: Gateway) -> None:
    for scope in ("jobs:write", "jobs:read", "metrics"):
        key = await key_for(strict, scopes=frozenset({scope}))
        for path in (CHAT, EMBEDDINGS):
            answer = await send(strict, HELLO, path, **bearer(key))
            assert "All of these scopes" in error_in(answer, 403, "insufficient_scope")["message"]
        assert (await strict.client.get(MODELS, bearer(key))).status == 200
    key = await key_for(strict, tasks=frozenset({"embed"}))
    error_in(await send(strict, HELLO, **bearer(key)), 403, "task_not_allowed")
    both = await key_for(strict, scopes=frozenset({"jobs:write", "jobs:read"}))
    request = await work(strict, **bearer(both))
    await request.finish()
    assert (await request.answer()).status == 200


async def test_revoking_the_key_ends_the_request(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.gateway.auth.callers.CACHE_TTL_S", 0.0)
    gateway = make(auth="required", sse_heartbeat_s=0.05)
    key = await key_for(gateway)
    request = await work(gateway, **bearer(key))
    await gateway.state.access.keys.revoke(key.split("_")[1])
    error_in(await request.answer(), 401, "invalid_api_key")
    assert json.dumps(await request.status()) == '"queued"'
