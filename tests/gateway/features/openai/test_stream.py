"""`POST /v1/chat/completions` with `stream`: chunks arrive live, none is lost or repeated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.features.openai.chat import stream as streaming
from tests.support.gateway.harness import Gateway, Make
from tests.support.gateway.openai import (
    HELLO,
    STREAMED,
    Work,
    begin,
    chunks,
    error_in,
    text_of,
    work,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only


async def error_of(request: Work) -> tuple[str, dict[str, Any]]:
    """The received text, and the error at the end of the stream."""
    blocks = await request.exchange.rest()
    *found, last = [block.json() for block in blocks]
    assert set(last) == {"error"}
    assert request.gateway.hub.clients == 0
    return text_of(found), last["error"]


async def test_the_stream_is_a_sequence_of_chunks(gateway: Gateway) -> None:
    request = await work(gateway, {**STREAMED, "model": "tiny"})
    await request.run()
    await request.say("Hi")
    stream = await request.exchange.start()
    assert stream.status == 200
    assert stream.header("content-type") == "text/event-stream; charset=utf-8"
    assert stream.header("cache-control") == "no-store, no-transform"
    assert stream.header("x-accel-buffering") == "no"
    assert stream.header("content-length") is None
    assert stream.header("x-job-id") == request.job_id
    found = []
    for word in ("", "Hi", " there,", " friend."):  # each chunk as it is emitted
        if word not in ("", "Hi"):
            await request.say(word)
        block = await stream.next()
        assert block is not None
        found.append(block.json())
        assert found[-1]["choices"][0]["delta"]["content"] == word
    await gateway.emit(request.job_id, "message", {"text": "not a piece of it"})
    await request.finish()
    found += await chunks(stream)
    for chunk in found:
        assert chunk["id"] == f"chatcmpl-{request.job_id}"
        assert (chunk["object"], chunk["model"]) == ("chat.completion.chunk", "tiny")
        assert isinstance(chunk["created"], int)
        assert "usage" not in chunk
        [choice] = chunk["choices"]
        assert choice["index"] == 0
        assert (choice["finish_reason"] is None) is (chunk is not found[-1])
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(found) == "Hi there, friend."
    assert found[-1]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop"}
    assert found[-1]["sluice"]["job_id"] == request.job_id
    assert gateway.hub.clients == 0


async def test_usage_is_sent_on_request(gateway: Gateway) -> None:
    request = await work(gateway, {**STREAMED, "stream_options": {"include_usage": True}})
    await request.finish()
    await request.exchange.start()
    *found, last = await chunks(request.exchange)
    assert all(chunk["usage"] is None for chunk in found)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 10
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


async def test_reasoning_and_tool_calls_are_sent(gateway: Gateway) -> None:
    request = await work(gateway, STREAMED)
    await request.run()
    await request.think("let me", " see")
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    await request.finish(
        text="", reasoning="let me see", tool_calls=[call], finish_reason="tool_calls"
    )
    await request.exchange.start()
    found = await chunks(request.exchange)
    assert text_of(found, "reasoning_content") == "let me see"
    assert text_of(found) == ""
    [calls] = [
        chunk["choices"][0]["delta"]["tool_calls"]
        for chunk in found
        if "tool_calls" in chunk["choices"][0]["delta"]
    ]
    assert calls == [{"index": 0, **call}]
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_trimmed_events_are_completed_from_the_result(gateway: Gateway) -> None:
    """A slow client falls back to Redis, where older events have been trimmed."""
    request = await work(gateway, STREAMED)
    await request.run()
    await request.say("Hi")
    stream = await request.exchange.start()
    await stream.next()
    await stream.next()
    [watch] = gateway.hub._subscribers
    watch._fall_back()
    await request.say(" there,", hint=False)
    await request.say(" friend.", hint=False)
    await gateway.redis.xtrim(gateway.keys.events(request.job_id), maxlen=1, approximate=False)
    await request.finish()
    watch._notify()
    assert text_of(await chunks(stream)) == " there, friend."


async def test_a_waiting_stream_gets_heartbeats(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "FIRST_CHUNK_WAIT_S", 0.05)
    gateway = make(sse_heartbeat_s=0.05, sse_max_life_s=0.2)
    request = await work(gateway, STREAMED)
    stream = await request.exchange.start()
    for _ in range(6):  # also beyond the maximum age of event streams
        block = await stream.next()
        assert block is not None
        assert block.comment or block.json()["choices"][0]["delta"]["role"]
    await request.run()
    await request.finish()
    assert text_of(await chunks(stream)) == "Hi there, friend."


async def test_events_without_text_do_not_suppress_heartbeats(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "FIRST_CHUNK_WAIT_S", 0.01)
    gateway = make(sse_heartbeat_s=0.1)
    request = await work(gateway, STREAMED)
    stream = await request.exchange.start()
    await stream.next()

    async def emit_progress() -> None:
        while True:
            await gateway.emit(request.job_id, "progress", {"done": 1, "total": 2, "attempt": 1})
            await asyncio.sleep(0.01)

    emitting = asyncio.create_task(emit_progress())
    for _ in range(3):
        block = await stream.next()
        assert block is not None
        assert block.comment
    emitting.cancel()
    await asyncio.gather(emitting, return_exceptions=True)
    await request.finish()
    assert text_of(await chunks(stream)) == "Hi there, friend."


async def test_a_job_that_fails_before_the_first_chunk_has_a_status(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "FIRST_CHUNK_WAIT_S", 60.0)  # long enough for a slow machine
    request = await work(gateway, STREAMED)
    await request.run()
    await request.fail("model_refused", "the prompt is too long")
    answer = await request.answer()
    error = error_in(answer, 400, "model_refused")
    assert error["message"] == "the prompt is too long"
    assert answer.header("x-job-id") == request.job_id


async def test_a_job_that_fails_later_ends_with_an_error(gateway: Gateway) -> None:
    request = await work(gateway, STREAMED)
    await request.run()
    await request.say("Hi")
    await request.exchange.start()
    await request.fail("model_stream_broken", "the server hung up")
    text, error = await error_of(request)
    assert text == "Hi"
    assert error == {
        "message": "the server hung up",
        "type": "server_error",
        "param": None,
        "code": "model_stream_broken",
    }


async def test_a_different_attempt_ends_with_an_error(gateway: Gateway) -> None:
    request = await work(gateway, STREAMED)
    await request.run()
    await request.say("Hi", " the")
    await request.exchange.start()
    await request.run()
    await request.say("Hi", " you")
    text, error = await error_of(request)
    assert text == "Hi the"
    assert error["code"] == "answer_restarted"
    assert request.job_id in error["message"]
    assert await request.status() == "queued"  # not canceled


async def test_shutdown_ends_the_stream_with_an_error(gateway: Gateway) -> None:
    request = await work(gateway, STREAMED)
    await request.run()
    await request.say("Hi")
    await request.exchange.start()
    await request.exchange.next()
    gateway.hub.close_streams()
    _, error = await error_of(request)
    assert error["code"] == "gateway_stopping"
    assert [kind for kind, _ in await request.events()] == ["queued", "running", "message"]


async def test_rounds_of_an_agent_are_joined(gateway: Gateway) -> None:
    for response_format, expected in (
        ({"type": "text"}, "Let me see.\n\nIt is 4."),
        ({"type": "json_object"}, "It is 4."),
    ):
        body = {**STREAMED, "tools": ["calculator"], "response_format": response_format}
        request = await work(gateway, body)
        assert (await request.payload())["tools"] == ["calculator"]
        await request.run()
        await request.say("Let me", " see.")
        await request.say("It is", " 4.", round=2)
        await request.finish(text="It is 4.")
        await request.exchange.start()
        assert text_of(await chunks(request.exchange)) == expected


async def test_a_repeated_request_gets_the_same_stream(gateway: Gateway) -> None:
    request = await work(gateway, STREAMED, idempotency_key="k")
    await request.run()
    await request.say("Hi")
    await request.finish()
    for exchange in (
        request.exchange,
        begin(gateway, HELLO | {"stream": True}, idempotency_key="k"),
    ):
        await exchange.start()
        assert text_of(await chunks(exchange)) == "Hi there, friend."
    assert exchange.header("idempotent-replayed") == "true"


async def test_the_limit_of_open_streams_applies(make: Make) -> None:
    gateway = make(sse_max_clients=1)
    request = await work(gateway, STREAMED)
    await eventually(lambda: gateway.hub.clients)
    before = await gateway.redis.xlen(gateway.keys.queue)
    for body in (STREAMED, HELLO):
        answer = await begin(gateway, body).answer()
        error_in(answer, 503, "too_many_streams")
        assert answer.header("retry-after") == "5"
    assert await gateway.redis.xlen(gateway.keys.queue) == before
    await request.finish()
    await request.exchange.start()
    await chunks(request.exchange)


async def test_an_unexpected_error_leaves_no_subscriber(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object) -> bytes:
        raise RuntimeError("oh")

    monkeypatch.setattr("gateway.features.openai.chat.stream.ChatStream.feed", wrong)
    monkeypatch.setattr(streaming, "FIRST_CHUNK_WAIT_S", 60.0)
    request = await work(gateway, STREAMED)
    error_in(await request.answer(), 500, "internal_error")
    assert gateway.hub.clients == 0
