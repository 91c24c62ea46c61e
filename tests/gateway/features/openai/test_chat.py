"""`POST /v1/chat/completions` without `stream`: waits for the job and returns its result."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.features.openai import job_runner
from tests.conftest import eventually
from tests.gateway.conftest import Gateway, Make
from tests.gateway.features.openai.kit import CHAT, HELLO, begin, error_in, send, work


async def test_an_answer(gateway: Gateway) -> None:
    asked = await work(gateway)
    await asked.run()
    await asked.say("Hi ", "there, ")
    await asked.finish()
    answer = await asked.answer()
    assert answer.status == 200
    body = answer.json()
    created = body.pop("created")
    assert isinstance(created, int)
    assert body == {
        "id": f"chatcmpl-{asked.job_id}",
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi there, friend.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "total_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
        "sluice": {
            "job_id": asked.job_id,
            "finish_reason": "stop",
            "ms": 120,
            "first_token_ms": 40,
            "tokens_per_s": 25.0,
        },
    }
    assert answer.header("x-job-id") == asked.job_id
    assert answer.header("location") == f"/v1/jobs/{asked.job_id}"
    assert gateway.hub.clients == 0


async def test_the_job_is_a_chat_like_any_other(gateway: Gateway) -> None:
    asked = await work(gateway, {**HELLO, "model": "tiny", "temperature": 0.5, "user": "u1"})
    assert await asked.payload() == {**HELLO, "model": "tiny", "temperature": 0.5}
    read = await gateway.client.get(f"/v1/jobs/{asked.job_id}")
    assert (read.json()["task"], read.json()["status"]) == ("chat", "queued")
    await asked.finish()
    await asked.answer()


async def test_calls_that_the_client_is_to_make(fake_gateway: Gateway) -> None:
    tool = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
        for n in (1, 2)
    ]
    for parallel, expected in ((True, calls), (False, calls[:1])):
        body = {**HELLO, "tools": [tool], "parallel_tool_calls": parallel}
        asked = await work(fake_gateway, body)
        assert (await asked.payload())["tools"] == [tool]
        await asked.finish(text="", tool_calls=calls, finish_reason="tool_calls")
        [choice] = (await asked.answer()).json()["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        assert choice["message"]["tool_calls"] == expected


async def test_thoughts(fake_gateway: Gateway) -> None:
    asked = await work(fake_gateway)
    await asked.finish(reasoning="let me see")
    message = (await asked.answer()).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "let me see"


async def test_reasons_to_end(fake_gateway: Gateway) -> None:
    reasons = {"length": "length", "stop": "stop", "eos": "stop", "": "stop", "max_calls": "length"}
    for told, expected in reasons.items():
        asked = await work(fake_gateway)
        await asked.finish(finish_reason=told)
        answer = (await asked.answer()).json()
        assert answer["choices"][0]["finish_reason"] == expected
        assert answer["sluice"]["finish_reason"] == told


async def test_a_foreign_result_with_text_only(fake_gateway: Gateway) -> None:
    asked = await work(fake_gateway, {**HELLO, "model": "any"})
    await asked.end("done", result='{"text":"hi","more":[1]}')
    body = (await asked.answer()).json()
    assert body["choices"][0]["message"]["content"] == "hi"
    assert (body["model"], body["usage"]) == ("any", None)


async def test_a_result_of_something_else(fake_gateway: Gateway) -> None:
    for result in ('{"text":5}', "[1]", "no json", '{"text":"x","tool_calls":[{}]}'):
        asked = await work(fake_gateway)
        await asked.end("done", result=result)
        error_in(await asked.answer(), 502, "worker_answer_invalid")


async def test_an_idempotency_key(gateway: Gateway) -> None:
    asked = await work(gateway, idempotency_key="k1")
    again = begin(gateway, HELLO, idempotency_key="k1")
    other = await send(
        gateway, {"messages": [{"role": "user", "content": "else"}]}, idempotency_key="k1"
    )
    error_in(other, 422, "idempotency_key_reused")
    await asked.finish()
    first, second = await asked.answer(), await again.answer()
    assert first.body == second.body
    assert first.header("idempotent-replayed") is None
    assert second.header("idempotent-replayed") == "true"
    # Much later, when even the events are gone.
    await gateway.redis.delete(gateway.keys.events(asked.job_id))
    third = await send(gateway, HELLO, idempotency_key="k1")
    assert third.json()["id"] == first.json()["id"]
    assert gateway.hub.clients == 0


async def test_it_waits_beyond_the_life_of_event_streams(make: Make) -> None:
    gateway = make(sse_max_life_s=0.05, sse_heartbeat_s=0.05)
    asked = await work(gateway)
    [watch] = gateway.hub._subscribers

    def another() -> bool:
        return watch not in gateway.hub._subscribers and gateway.hub.clients == 1

    await eventually(another)
    await asked.run()
    await asked.finish()
    assert (await asked.answer()).status == 200


async def test_a_foreign_worker_that_left_no_last_event(make: Make) -> None:
    gateway = make(sse_heartbeat_s=0.05)
    asked = await work(gateway)
    key = gateway.keys.job(asked.job_id)
    await gateway.redis.hset(key, mapping={"status": "done", "result": '{"text":"hi"}'})  # type: ignore[misc]
    assert (await asked.answer()).json()["choices"][0]["message"]["content"] == "hi"


async def test_an_expired_job(make: Make) -> None:
    gateway = make(sse_heartbeat_s=0.05)
    asked = await work(gateway)
    await gateway.redis.delete(gateway.keys.job(asked.job_id), gateway.keys.events(asked.job_id))
    error_in(await asked.answer(), 504, "job_expired")


async def test_a_stopping_gateway_lets_the_job_go_on(gateway: Gateway) -> None:
    asked = await work(gateway)
    await asked.run()
    gateway.hub.close_streams()
    answer = await asked.answer()
    error = error_in(answer, 503, "gateway_stopping")
    assert asked.job_id in error["message"]
    assert answer.header("retry-after") == "1"
    assert [kind for kind, _ in await asked.events()] == ["queued", "running"]


async def test_redis_is_away_when_the_job_has_ended(
    fake_gateway: Gateway, monkeypatch: Any
) -> None:
    monkeypatch.setattr(job_runner, "READ_RETRY_S", 0.01)
    asked = await work(fake_gateway)
    reading, refused = fake_gateway.state.store.get, asyncio.Event()

    async def get(job_id: str) -> Any:
        if not refused.is_set():
            refused.set()
            raise job_runner.StoreUnavailable("away")
        return await reading(job_id)

    monkeypatch.setattr(fake_gateway.state.store, "get", get)
    await asked.finish()
    assert (await asked.answer()).status == 200
    assert refused.is_set()


async def test_only_post(fake_gateway: Gateway) -> None:
    answer = await fake_gateway.client.get(CHAT)
    error_in(answer, 405, "method_not_allowed")
    assert answer.header("allow") == "POST"
