"""`POST /v1/chat/completions` with `stream`: chunks arrive live, none is lost or repeated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.features.openai.chat import stream as streaming
from tests.conftest import eventually
from tests.gateway.conftest import Gateway, Make
from tests.gateway.features.openai.kit import (
    HELLO,
    STREAMED,
    Work,
    begin,
    chunks,
    error_in,
    text_of,
    work,
)


async def error_of(asked: Work) -> tuple[str, dict[str, Any]]:
    """The text that came, and the error that the stream ended with."""
    blocks = await asked.exchange.rest()
    *found, last = [block.json() for block in blocks]
    assert set(last) == {"error"}
    assert asked.gateway.hub.clients == 0
    return text_of(found), last["error"]


async def test_a_stream(gateway: Gateway) -> None:
    asked = await work(gateway, {**STREAMED, "model": "tiny"})
    await asked.run()
    await asked.say("Hi")
    stream = await asked.exchange.start()
    assert stream.status == 200
    assert stream.header("content-type") == "text/event-stream; charset=utf-8"
    assert stream.header("cache-control") == "no-store, no-transform"
    assert stream.header("x-accel-buffering") == "no"
    assert stream.header("content-length") is None
    assert stream.header("x-job-id") == asked.job_id
    await asked.say(" there,", " friend.")
    await asked.finish()
    found = await chunks(stream)
    for chunk in found:
        assert chunk["id"] == f"chatcmpl-{asked.job_id}"
        assert (chunk["object"], chunk["model"]) == ("chat.completion.chunk", "tiny")
        assert isinstance(chunk["created"], int)
        assert "usage" not in chunk
        [choice] = chunk["choices"]
        assert choice["index"] == 0
        assert (choice["finish_reason"] is None) is (chunk is not found[-1])
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(found) == "Hi there, friend."
    assert found[-1]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop"}
    assert found[-1]["sluice"]["job_id"] == asked.job_id
    assert gateway.hub.clients == 0


async def test_tokens_come_as_they_are_said(gateway: Gateway) -> None:
    asked = await work(gateway, STREAMED)
    await asked.run()
    await asked.say("Hi")
    stream = await asked.exchange.start()
    await stream.next()
    for word in ("Hi", " there,", " friend."):
        if word != "Hi":
            await asked.say(word)
        block = await stream.next()
        assert block is not None
        assert block.json()["choices"][0]["delta"] == {"content": word}
    await asked.finish()
    assert text_of(await chunks(stream)) == ""


async def test_usage_when_asked_for(fake_gateway: Gateway) -> None:
    asked = await work(fake_gateway, {**STREAMED, "stream_options": {"include_usage": True}})
    await asked.finish()
    await asked.exchange.start()
    *found, last = await chunks(asked.exchange)
    assert all(chunk["usage"] is None for chunk in found)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 10
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


async def test_thoughts_and_calls(fake_gateway: Gateway) -> None:
    asked = await work(fake_gateway, STREAMED)
    await asked.run()
    await asked.think("let me", " see")
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    await asked.finish(
        text="", reasoning="let me see", tool_calls=[call], finish_reason="tool_calls"
    )
    await asked.exchange.start()
    found = await chunks(asked.exchange)
    assert text_of(found, "reasoning_content") == "let me see"
    assert text_of(found) == ""
    [calls] = [
        chunk["choices"][0]["delta"]["tool_calls"]
        for chunk in found
        if "tool_calls" in chunk["choices"][0]["delta"]
    ]
    assert calls == [{"index": 0, **call}]
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_worker_that_says_nothing_on_the_way(fake_gateway: Gateway) -> None:
    asked = await work(fake_gateway, STREAMED)
    await asked.run()
    await fake_gateway.emit(asked.job_id, "message", {"text": "not a piece of it"})
    await asked.finish()
    await asked.exchange.start()
    assert text_of(await chunks(asked.exchange)) == "Hi there, friend."


async def test_events_that_were_trimmed(gateway: Gateway) -> None:
    """A client that read slowly falls back to Redis, where the middle is gone."""
    asked = await work(gateway, STREAMED)
    await asked.run()
    await asked.say("Hi")
    stream = await asked.exchange.start()
    await stream.next()
    await stream.next()
    [watch] = gateway.hub._subscribers
    watch._fall_back()
    await asked.say(" there,", hint=False)
    await asked.say(" friend.", hint=False)
    await gateway.redis.xtrim(gateway.keys.events(asked.job_id), maxlen=1, approximate=False)
    await asked.finish()
    watch._notify()
    assert text_of(await chunks(stream)) == " there, friend."


async def test_heartbeats_while_it_waits(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "FIRST_CHUNK_WAIT_S", 0.05)
    gateway = make(sse_heartbeat_s=0.05, sse_max_life_s=0.2)
    asked = await work(gateway, STREAMED)
    stream = await asked.exchange.start()
    for _ in range(6):  # also when the watch behind it has had its time
        block = await stream.next()
        assert block is not None
        assert block.comment or block.json()["choices"][0]["delta"]["role"]
    await asked.run()
    await asked.finish()
    assert text_of(await chunks(stream)) == "Hi there, friend."


async def test_heartbeats_while_much_happens_that_is_not_told(
    fake_make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "FIRST_CHUNK_WAIT_S", 0.01)
    gateway = fake_make(sse_heartbeat_s=0.2)
    asked = await work(gateway, STREAMED)
    stream = await asked.exchange.start()
    await stream.next()

    async def talk() -> None:
        while True:
            await gateway.emit(asked.job_id, "progress", {"done": 1, "total": 2, "attempt": 1})
            await asyncio.sleep(0.01)

    talking = asyncio.create_task(talk())
    for _ in range(3):
        block = await stream.next()
        assert block is not None
        assert block.comment
    talking.cancel()
    await asyncio.gather(talking, return_exceptions=True)
    await asked.finish()
    assert text_of(await chunks(stream)) == "Hi there, friend."


async def test_a_job_that_fails_at_once_has_a_status(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "FIRST_CHUNK_WAIT_S", 60.0)  # at once, on a slow machine too
    asked = await work(gateway, STREAMED)
    await asked.run()
    await asked.fail("model_refused", "the prompt is too long")
    answer = await asked.answer()
    error = error_in(answer, 400, "model_refused")
    assert error["message"] == "the prompt is too long"
    assert answer.header("x-job-id") == asked.job_id


async def test_a_job_that_fails_in_mid_answer(gateway: Gateway) -> None:
    asked = await work(gateway, STREAMED)
    await asked.run()
    await asked.say("Hi")
    await asked.exchange.start()
    await asked.fail("model_stream_broken", "the server hung up")
    text, error = await error_of(asked)
    assert text == "Hi"
    assert error == {
        "message": "the server hung up",
        "type": "server_error",
        "param": None,
        "code": "model_stream_broken",
    }


async def test_another_attempt_that_says_the_same(gateway: Gateway) -> None:
    asked = await work(gateway, STREAMED)
    await asked.run()
    await asked.say("Hi", " the")
    await asked.exchange.start()
    await asked.run()
    await asked.say("Hi th", "ere", ", friend", ".")
    await asked.finish()
    assert text_of(await chunks(asked.exchange)) == "Hi there, friend."


async def test_another_attempt_that_says_something_else(gateway: Gateway) -> None:
    asked = await work(gateway, STREAMED)
    await asked.run()
    await asked.say("Hi", " the")
    await asked.exchange.start()
    await asked.run()
    await asked.say("Hi", " you")
    text, error = await error_of(asked)
    assert text == "Hi the"
    assert error["code"] == "answer_restarted"
    assert asked.job_id in error["message"]
    assert await asked.status() == "queued"  # not canceled


async def test_a_stopping_gateway_says_so(gateway: Gateway) -> None:
    asked = await work(gateway, STREAMED)
    await asked.run()
    await asked.say("Hi")
    await asked.exchange.start()
    await asked.exchange.next()
    gateway.hub.close_streams()
    _, error = await error_of(asked)
    assert error["code"] == "gateway_stopping"
    assert [kind for kind, _ in await asked.events()] == ["queued", "running", "message"]


async def test_an_agent_that_asks_the_model_twice(fake_gateway: Gateway) -> None:
    for response_format, expected in (
        ({"type": "text"}, "Let me see.\n\nIt is 4."),
        ({"type": "json_object"}, "It is 4."),
    ):
        body = {**STREAMED, "tools": ["calculator"], "response_format": response_format}
        asked = await work(fake_gateway, body)
        assert (await asked.payload())["tools"] == ["calculator"]
        await asked.run()
        await asked.say("Let me", " see.")
        await asked.say("It is", " 4.", round=2)
        await asked.finish(text="It is 4.")
        await asked.exchange.start()
        assert text_of(await chunks(asked.exchange)) == expected


async def test_a_replayed_stream(gateway: Gateway) -> None:
    asked = await work(gateway, STREAMED, idempotency_key="k")
    await asked.run()
    await asked.say("Hi")
    await asked.finish()
    for exchange in (asked.exchange, begin(gateway, HELLO | {"stream": True}, idempotency_key="k")):
        await exchange.start()
        assert text_of(await chunks(exchange)) == "Hi there, friend."
    assert exchange.header("idempotent-replayed") == "true"


async def test_as_many_as_event_streams_may_be(make: Make) -> None:
    gateway = make(sse_max_clients=1)
    asked = await work(gateway, STREAMED)
    await eventually(lambda: gateway.hub.clients)
    before = await gateway.redis.xlen(gateway.keys.queue)
    for body in (STREAMED, HELLO):
        answer = await begin(gateway, body).answer()
        error_in(answer, 503, "too_many_streams")
        assert answer.header("retry-after") == "5"
    assert await gateway.redis.xlen(gateway.keys.queue) == before
    await asked.finish()
    await asked.exchange.start()
    await chunks(asked.exchange)


async def test_many_streams_at_once(gateway: Gateway) -> None:
    exchanges = [begin(gateway, STREAMED) for _ in range(50)]

    async def all_there() -> bool:
        return await gateway.redis.xlen(gateway.keys.queue) == len(exchanges)

    await eventually(all_there)
    entries = await gateway.redis.xrange(gateway.keys.queue)
    works = [Work(gateway, exchanges[0], fields[b"job_id"].decode()) for _, fields in entries]
    for one in works:
        await one.run()
        await one.say(one.job_id[:8], one.job_id[8:])
        await one.finish(text=one.job_id)
    for exchange in exchanges:
        await exchange.start()
        found = await chunks(exchange)
        assert f"chatcmpl-{text_of(found)}" == found[0]["id"]


async def test_a_mistake_of_ours_leaves_nothing_behind(
    fake_gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object) -> bytes:
        raise RuntimeError("oh")

    monkeypatch.setattr("gateway.features.openai.chat.stream.ChatStream.feed", wrong)
    monkeypatch.setattr(streaming, "FIRST_CHUNK_WAIT_S", 60.0)
    asked = await work(fake_gateway, STREAMED)
    error_in(await asked.answer(), 500, "internal_error")
    assert fake_gateway.hub.clients == 0
