"""Chat completions without `stream`, embeddings, and the list of models."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import pytest

from sluice.gateway.features.openai import job_runner
from sluice.gateway.features.openai.chat.request import EXAMPLE_CHAT, ChatRequest
from sluice.gateway.features.openai.chat.response import ChatCompletion
from sluice.gateway.features.openai.embeddings import EXAMPLE_EMBEDDINGS, EmbeddingsRequest
from sluice.gateway.http.error_formats import OpenAIErrorView
from sluice.gateway.http.problems import Problem
from sluice.gateway.observability.workers import LiveWorkers
from tests.support.gateway.faults import fail_first
from tests.support.gateway.harness import Gateway, Make
from tests.support.gateway.openai import (
    CHAT,
    EMBEDDINGS,
    HELLO,
    MODELS,
    Work,
    beat,
    begin,
    error_in,
    send,
    work,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only


async def test_the_response_is_a_chat_completion(gateway: Gateway) -> None:
    request = await work(gateway, {**HELLO, "model": "tiny", "temperature": 0.5, "user": "u1"})
    assert await request.payload() == {**HELLO, "model": "tiny", "temperature": 0.5}
    read = await gateway.client.get(f"/v1/jobs/{request.job_id}")
    assert (read.json()["task"], read.json()["status"]) == ("chat", "queued")
    await request.run()
    await request.say("Hi ", "there, ")
    await request.finish(reasoning="let me see")
    answer = await request.answer()
    assert answer.status == 200
    body = answer.json()
    created = body.pop("created")
    assert isinstance(created, int)
    message = {"role": "assistant", "content": "Hi there, friend.", "refusal": None}
    message["reasoning_content"] = "let me see"
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    measured = {"ms": 120, "first_token_ms": 40, "tokens_per_s": 25.0}
    assert body == {
        "id": f"chatcmpl-{request.job_id}",
        "object": "chat.completion",
        "model": "tiny",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 4}},
        "sluice": {"job_id": request.job_id, "finish_reason": "stop", **measured},
    }
    assert answer.header("x-job-id") == request.job_id
    assert answer.header("location") == f"/v1/jobs/{request.job_id}"
    assert gateway.hub.clients == 0


async def test_tool_calls_for_the_client_are_returned(gateway: Gateway) -> None:
    tool = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
        for n in (1, 2)
    ]
    for parallel, expected in ((True, calls), (False, calls[:1])):
        body = {**HELLO, "tools": [tool], "parallel_tool_calls": parallel}
        request = await work(gateway, body)
        assert (await request.payload())["tools"] == [tool]
        await request.finish(text="", tool_calls=calls, finish_reason="tool_calls")
        [choice] = (await request.answer()).json()["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        assert choice["message"]["tool_calls"] == expected


async def test_finish_reasons_are_translated(gateway: Gateway) -> None:
    reasons = {"length": "length", "stop": "stop", "eos": "stop", "": "stop", "max_calls": "length"}
    for reason, expected in reasons.items():
        request = await work(gateway)
        await request.finish(finish_reason=reason)
        answer = (await request.answer()).json()
        assert answer["choices"][0]["finish_reason"] == expected
        assert answer["sluice"]["finish_reason"] == reason


async def test_a_third_party_result_needs_only_a_valid_text(gateway: Gateway) -> None:
    request = await work(gateway, {**HELLO, "model": "any"})
    await request.end("done", result='{"text":"hi","more":[1]}')
    body = (await request.answer()).json()
    assert body["choices"][0]["message"]["content"] == "hi"
    assert (body["model"], body["usage"]) == ("any", None)
    for result in ('{"text":5}', "[1]", "no json", '{"text":"x","tool_calls":[{}]}'):
        request = await work(gateway)
        await request.end("done", result=result)
        error_in(await request.answer(), 502, "worker_answer_invalid")


async def test_an_idempotency_key_returns_the_same_completion(gateway: Gateway) -> None:
    request = await work(gateway, idempotency_key="k1")
    again = begin(gateway, HELLO, idempotency_key="k1")
    other = await send(
        gateway, {"messages": [{"role": "user", "content": "else"}]}, idempotency_key="k1"
    )
    error_in(other, 422, "idempotency_key_reused")
    await request.finish()
    first, second = await request.answer(), await again.answer()
    assert first.body == second.body
    assert first.header("idempotent-replayed") is None
    assert second.header("idempotent-replayed") == "true"
    # Also after the events have expired.
    await gateway.redis.delete(gateway.keys.events(request.job_id))
    third = await send(gateway, HELLO, idempotency_key="k1")
    assert third.json()["id"] == first.json()["id"]
    assert gateway.hub.clients == 0


async def test_a_request_may_outlast_the_maximum_age_of_streams(make: Make) -> None:
    gateway = make(sse_max_life_s=0.05, sse_heartbeat_s=0.05)
    request = await work(gateway)
    [watch] = gateway.hub._subscribers

    def another() -> bool:
        return watch not in gateway.hub._subscribers and gateway.hub.clients == 1

    await eventually(another)
    await request.run()
    await request.finish()
    assert (await request.answer()).status == 200


async def test_a_job_that_ends_or_expires_silently_is_noticed(make: Make) -> None:
    gateway = make(sse_heartbeat_s=0.05)
    request, expiring = await work(gateway), await work(gateway)
    key = gateway.keys.job(request.job_id)
    await gateway.redis.hset(key, mapping={"status": "done", "result": '{"text":"hi"}'})
    assert (await request.answer()).json()["choices"][0]["message"]["content"] == "hi"
    job_id = expiring.job_id
    await gateway.redis.delete(gateway.keys.job(job_id), gateway.keys.events(job_id))
    error_in(await expiring.answer(), 504, "job_expired")


async def test_shutdown_ends_the_request_but_not_the_job(gateway: Gateway) -> None:
    request = await work(gateway)
    await request.run()
    gateway.hub.close_streams()
    answer = await request.answer()
    error = error_in(answer, 503, "gateway_stopping")
    assert request.job_id in error["message"]
    assert answer.header("retry-after") == "1"
    assert [kind for kind, _ in await request.events()] == ["queued", "running"]


async def test_reading_the_result_is_retried(gateway: Gateway, monkeypatch: Any) -> None:
    monkeypatch.setattr(job_runner, "READ_RETRY_S", 0.01)
    request = await work(gateway)
    error = job_runner.StoreUnavailable("away")
    left = fail_first(monkeypatch, gateway.state.store, "get", error)
    await request.finish()
    assert (await request.answer()).status == 200
    assert left == []


VECTORS = [[0.5, -0.25, 1.0], [0.1, 0.2, 0.3]]
EMBEDDING_USAGE = {"prompt_tokens": 6, "completion_tokens": 0, "total_tokens": 6}


async def finish_embedding(request: Work, vectors: Any = VECTORS, **more: Any) -> None:
    known = {"dimensions": 3, "model": "minilm", "usage": EMBEDDING_USAGE, "ms": 4}
    await request.end("done", result=json.dumps({"vectors": vectors, **known, **more}))


async def test_vectors_are_returned_in_order(gateway: Gateway) -> None:
    request = await work(gateway, {"input": ["a", "b"], "model": "minilm"}, EMBEDDINGS)
    assert await request.payload() == {"input": ["a", "b"]}
    await finish_embedding(request)
    answer = await request.answer()
    assert answer.status == 200
    assert answer.header("x-job-id") == request.job_id
    assert answer.json() == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": VECTORS[0]},
            {"object": "embedding", "index": 1, "embedding": VECTORS[1]},
        ],
        "model": "minilm",
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
        "sluice": {"job_id": request.job_id},
    }
    body = {"input": "a", "encoding_format": "base64", "dimensions": 3, "user": "u"}
    request = await work(gateway, body, EMBEDDINGS)
    assert await request.payload() == {"input": "a", "dimensions": 3}
    await finish_embedding(request, VECTORS[:1])
    [item] = (await request.answer()).json()["data"]
    assert struct.unpack("<3f", base64.b64decode(item["embedding"])) == tuple(VECTORS[0])


async def test_failures_of_the_job_are_reported(gateway: Gateway) -> None:
    vectors = ('{"vectors":[["x"]]}', '{"vectors":[[1.0],[2.0]]}')
    for result in ("{}", '{"text":"hi"}', "[]", "", *vectors):
        request = await work(gateway, {"input": "a"}, EMBEDDINGS)
        await request.end("done", result=result)
        error_in(await request.answer(), 502, "worker_answer_invalid")
    request = await work(gateway, {"input": "a"}, EMBEDDINGS)
    await request.fail("no_embedder", "run `sluice model install`")
    error = error_in(await request.answer(), 503, "no_embedder")
    assert error["message"] == "run `sluice model install`"


async def test_invalid_requests_are_rejected(gateway: Gateway) -> None:
    for body, code, param in (
        ({}, "missing_required_parameter", "input"),
        ({"input": None}, "invalid_type", "input"),
        ({"input": ""}, "invalid_value", "input"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": ["a", ""]}, "invalid_value", "input[1]"),
        ({"input": ["a", 5]}, "invalid_type", "input[1]"),
        ({"input": ["a"] * 257}, "invalid_value", "input"),
        ({"input": [1, 2, 3]}, "unsupported_value", "input"),
        ({"input": [[1, 2], [3]]}, "unsupported_value", "input"),
        ({"input": "a", "encoding_format": "hex"}, "invalid_value", "encoding_format"),
        ({"input": "a", "dimensions": 0}, "invalid_value", "dimensions"),
        ({"input": "a", "dimensions": 1.5}, "invalid_type", "dimensions"),
        ({"input": "a", "input_type": "query"}, "unknown_parameter", "input_type"),
    ):
        error = error_in(await send(gateway, body, EMBEDDINGS), 400, code)
        assert error["param"] == param, body


async def test_without_heartbeats_any_model_name_is_accepted(gateway: Gateway) -> None:
    answer = await gateway.client.get(MODELS)
    assert (answer.status, answer.json()) == (200, {"object": "list", "data": []})
    error_in(await gateway.client.get(f"{MODELS}/x"), 404, "model_not_found")
    # Then any name is accepted.
    request = await work(gateway, {**HELLO, "model": "gpt-9"})
    assert (await request.payload())["model"] == "gpt-9"
    await request.finish(model="")
    assert (await request.answer()).json()["model"] == "gpt-9"


async def test_models_of_heartbeats_are_listed(gateway: Gateway) -> None:
    await beat(gateway, "w1", name="tiny", embedder="minilm")
    await beat(gateway, "w2", name="tiny")
    await beat(gateway, "w3", name="org/large:q4")
    await beat(gateway, "w4")
    await beat(gateway, "w5", name="both", embedder="both")
    answer = await gateway.client.get(MODELS)
    known = {"object": "model", "created": 1760000000, "owned_by": "sluice"}
    tasks = {"both": ["chat", "embed"], "minilm": ["embed"]}
    assert answer.json()["data"] == [
        {"id": name, **known, "sluice": {"tasks": tasks.get(name, ["chat"])}}
        for name in ("both", "minilm", "org/large:q4", "tiny")
    ]
    for name in ("tiny", "org/large:q4", "org%2Flarge:q4"):
        one = await gateway.client.get(f"{MODELS}/{name}")
        assert (one.status, one.json()["object"]) == (200, "model")
    for name in ("Tiny", "org", "tiny/"):
        error = error_in(await gateway.client.get(f"{MODELS}/{name}"), 404, "model_not_found")
        assert error["param"] == "model"
    error_in(await gateway.client.send("DELETE", f"{MODELS}/tiny"), 405, "method_not_allowed")


async def test_an_unknown_model_is_rejected(gateway: Gateway) -> None:
    await beat(gateway, name="tiny", embedder="minilm")
    for name in ("gpt-9", "minilm"):
        answer = await send(gateway, {**HELLO, "model": name})
        error = error_in(answer, 404, "model_not_found")
        assert "`tiny`" in error["message"]
        assert error["param"] == "model"
    answer = await send(gateway, {"input": "a", "model": "tiny"}, EMBEDDINGS)
    assert "`minilm`" in error_in(answer, 404, "model_not_found")["message"]
    assert await gateway.redis.xlen(gateway.keys.queue) == 0
    for body in ({**HELLO, "model": "tiny"}, HELLO):
        request = await work(gateway, body)
        await request.finish(model="")
        assert (await request.answer()).json()["model"] == "tiny"


async def test_redis_is_read_once_a_second(gateway: Gateway) -> None:
    now = 0.0
    workers = LiveWorkers(gateway.redis, gateway.keys, lambda: now)
    assert await workers.cached() == []
    await beat(gateway, name="tiny")
    now = 0.9
    assert await workers.cached() == []
    now = 1.1
    [known] = await workers.cached()
    assert known.model is not None
    assert known.model.name == "tiny"


async def test_concurrent_requests_share_one_read_and_its_failure(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0

    async def away(*_: object) -> list[object]:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0.01)
        raise ConnectionError("away")

    monkeypatch.setattr("sluice.gateway.observability.workers.read_heartbeats", away)
    workers = gateway.state.workers
    waiting = [asyncio.create_task(workers.cached()) for _ in range(20)]
    waiting[0].cancel()  # a canceled request does not affect the others
    first, *others = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    assert all(isinstance(other, Problem) and other.status == 503 for other in others)
    assert reads == 1


MODEL = f"{MODELS}/{{model}}"
JOB_ERRORS = {"400", "403", "404", "413", "415", "422", "429", "499", "500", "502", "503", "504"}
COMMON_ERRORS = {"400", "401", "408", "413", "421", "431", "503"}
OPERATIONS = {
    ("post", CHAT): JOB_ERRORS,
    ("post", EMBEDDINGS): JOB_ERRORS,
    ("get", MODELS): set(),
    ("get", MODEL): {"404"},
}


def test_every_error_is_documented_in_openais_format(document: dict[str, Any]) -> None:
    for (method, path), expected in OPERATIONS.items():
        operation = document["paths"][path][method]
        errors = {status for status in operation["responses"] if status >= "400"}
        assert errors == expected | COMMON_ERRORS
        for status in errors:
            answer = operation["responses"][status]
            assert answer["description"]
            schema = answer["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/OpenAIErrorView"}
            assert set(answer["content"]) <= {"application/json", "application/problem+json"}
    content = document["paths"][CHAT]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}
    assert content["application/json"]["schema"]["$ref"].endswith("/ChatCompletion")
    for path in (CHAT, EMBEDDINGS):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = document["components"]["schemas"][body["schema"]["$ref"].rpartition("/")[2]]
        assert all("description" in part for part in schema["properties"].values())
        assert schema["additionalProperties"] is False
    ChatRequest.model_validate(EXAMPLE_CHAT)
    EmbeddingsRequest.model_validate(EXAMPLE_EMBEDDINGS)


async def test_real_responses_match_their_models(gateway: Gateway) -> None:
    work_item = await work(gateway)
    await work_item.finish()
    ChatCompletion.model_validate_json((await work_item.answer()).body, strict=True)
    OpenAIErrorView.model_validate_json((await send(gateway, {})).body, strict=True)
