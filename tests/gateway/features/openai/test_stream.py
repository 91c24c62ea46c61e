"""Streamed chat completions: chunks arrive live, none is lost or repeated across attempts."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.gateway.features.openai.chat import stream as chat_stream
from sluice.gateway.features.openai.chat.stream import PARAGRAPH, AnswerMismatch, ResumableText
from tests.support.gateway.harness import Gateway, Make
from tests.support.gateway.openai import (
    HELLO,
    STREAMED,
    Work,
    begin,
    chunks,
    error_in,
    streaming,
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
    request = await streaming(gateway, "Hi", body={**STREAMED, "model": "tiny"})
    stream = request.exchange
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
        block = await stream.block()
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
    request = await streaming(gateway)
    await request.think("let me", " see")
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    await request.finish(
        text="", reasoning="let me see", tool_calls=[call], finish_reason="tool_calls"
    )
    await request.exchange.start()
    found = await chunks(request.exchange)
    assert text_of(found, "reasoning_content") == "let me see"
    assert text_of(found) == ""
    deltas = [chunk["choices"][0]["delta"] for chunk in found]
    calls = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert calls == [[{"index": 0, **call}]]
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_trimmed_events_are_completed_from_the_result(gateway: Gateway) -> None:
    """A slow client falls back to Redis, where older events have been trimmed."""
    request = await streaming(gateway, "Hi")
    stream = request.exchange
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
    monkeypatch.setattr(chat_stream, "FIRST_CHUNK_WAIT_S", 0.05)
    gateway = make(sse_heartbeat_s=0.05, sse_max_life_s=0.2)
    request = await work(gateway, STREAMED)
    stream = await request.exchange.start()
    for _ in range(6):  # also beyond the maximum age of event streams
        block = await stream.block()
        assert block.comment or block.json()["choices"][0]["delta"]["role"]
    await request.run()
    await request.finish()
    assert text_of(await chunks(stream)) == "Hi there, friend."


async def test_events_without_text_do_not_suppress_heartbeats(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_stream, "FIRST_CHUNK_WAIT_S", 0.01)
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
        block = await stream.block()
        assert block.comment
    emitting.cancel()
    await asyncio.gather(emitting, return_exceptions=True)
    await request.finish()
    assert text_of(await chunks(stream)) == "Hi there, friend."


async def test_a_job_that_fails_before_the_first_chunk_has_a_status(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_stream, "FIRST_CHUNK_WAIT_S", 60.0)  # long enough for a slow machine
    request = await streaming(gateway)
    await request.fail("model_refused", "the prompt is too long")
    answer = await request.answer()
    error = error_in(answer, 400, "model_refused")
    assert error["message"] == "the prompt is too long"
    assert answer.header("x-job-id") == request.job_id


async def test_a_stream_that_cannot_continue_ends_with_an_error(gateway: Gateway) -> None:
    request = await streaming(gateway, "Hi")
    await request.fail("model_stream_broken", "the server hung up")
    kind = {"type": "server_error", "param": None, "code": "model_stream_broken"}
    assert await error_of(request) == ("Hi", {"message": "the server hung up", **kind})
    request = await streaming(gateway, "Hi", " the")
    await request.run()
    await request.say("Hi", " you")  # another answer than that of the first attempt
    text, error = await error_of(request)
    assert (text, error["code"]) == ("Hi the", "answer_restarted")
    assert request.job_id in error["message"]
    assert await request.status() == "queued"  # not canceled
    request = await streaming(gateway, "Hi")
    await request.exchange.next()
    gateway.hub.close_streams()
    assert (await error_of(request))[1]["code"] == "gateway_stopping"
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
    request = await streaming(gateway, "Hi", idempotency_key="k")
    await request.finish()
    again = await begin(gateway, STREAMED, idempotency_key="k").start()
    for exchange in (request.exchange, again):
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

    monkeypatch.setattr("sluice.gateway.features.openai.chat.stream.ChatStream.feed", wrong)
    monkeypatch.setattr(chat_stream, "FIRST_CHUNK_WAIT_S", 60.0)
    request = await work(gateway, STREAMED)
    error_in(await request.answer(), 500, "internal_error")
    assert gateway.hub.clients == 0


FEW = settings(max_examples=80, deadline=None)
texts = st.text("ab", max_size=12)


def pieces(text: str, cuts: list[int]) -> list[str]:
    """The text, cut at these positions."""
    positions = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(positions)]


def feed_attempt(
    resumable: ResumableText, text: list[str], attempt: int, lost: frozenset[int] = frozenset()
) -> str:
    """Feed an attempt; the pieces with these numbers are lost."""
    received = ""
    resumable.begin(attempt)
    for n, delta in enumerate(text, 1):
        if n not in lost:
            received += resumable.feed({"delta": delta, "n": n, "attempt": attempt})
    return received


cuts = st.lists(st.integers(0, 100), max_size=6)
losses = st.frozensets(st.integers(1, 8), max_size=4)


@FEW
@given(text=texts, before=st.integers(0, 12), first=cuts, second=cuts)
def test_a_repeated_attempt_adds_only_the_rest(
    text: str, before: int, first: list[int], second: list[int]
) -> None:
    resumable = ResumableText()
    received = feed_attempt(resumable, pieces(text[:before], first), 1)
    received += feed_attempt(resumable, pieces(text, second), 2)
    assert received + resumable.end(text) == text


@FEW
@given(attempts=st.lists(st.tuples(texts, cuts, losses), min_size=1, max_size=4), missed=losses)
def test_the_client_gets_the_answer_or_an_error(attempts: Any, missed: frozenset[int]) -> None:
    """Each attempt may end early, give another answer, and lose events."""
    resumable = ResumableText()
    received = ""
    try:
        for number, (text, positions, lost) in enumerate(attempts, 1):
            received += feed_attempt(resumable, pieces(text, positions), number, lost)
            if number in missed:
                resumable.mark_gap()
        last = attempts[-1][0]
        assert received + resumable.end(last) == last
    except AnswerMismatch:
        # The received text is the start of an attempt, but not of the last one.
        assert any(text.startswith(received) for text, _, _ in attempts)
        assert received


def test_different_and_shorter_answers_are_a_mismatch() -> None:
    resumable = ResumableText()
    assert feed_attempt(resumable, ["one", " two"], 1) == "one two"
    with pytest.raises(AnswerMismatch):
        feed_attempt(resumable, ["one", " three"], 2)
    resumable = ResumableText()
    feed_attempt(resumable, ["one", " two"], 1)
    assert feed_attempt(resumable, ["one"], 2) == ""
    with pytest.raises(AnswerMismatch):
        resumable.end("one")


def test_invalid_events_and_those_of_an_older_attempt_are_ignored() -> None:
    resumable = ResumableText()
    feed_attempt(resumable, ["one"], 2)
    assert resumable.feed({"delta": "x", "n": 5, "attempt": 1}) == ""
    assert resumable.end("one two") == " two"
    resumable = ResumableText()
    received = [resumable.feed(data) for data in ({"delta": "a"}, {"delta": "b"}, {}, {"delta": 5})]
    assert received == ["a", "b", "", ""]
    assert resumable.feed({"delta": "c", "n": "x", "attempt": 0}) == ""
    assert resumable.feed({"delta": "c", "attempt": "x"}) == ""
    assert resumable.end("abcd") == "cd"


def test_a_round_that_corrects_the_first_one_continues_it() -> None:
    """The model is called again because its answer was not usable."""
    resumable = ResumableText()
    assert resumable.feed({"delta": '{"a":', "n": 1, "attempt": 1}) == '{"a":'
    assert resumable.feed({"delta": '{"a":1}', "n": 2, "attempt": 1, "round": 2}) == "1}"
    assert resumable.end('{"a":1}') == ""
    with pytest.raises(AnswerMismatch):
        resumable.feed({"delta": "no", "n": 3, "attempt": 1, "round": 3})


def agent(*rounds: str) -> ResumableText:
    """Rounds that follow one another."""
    resumable = ResumableText(continuing=True)
    assert feed_rounds(resumable, *rounds) == PARAGRAPH.join(rounds)
    return resumable


def feed_rounds(resumable: ResumableText, *rounds: str, attempt: int = 1, first: int = 1) -> str:
    received = ""
    for n, text in enumerate(rounds, 1):
        data = {"delta": text, "n": n, "attempt": attempt, "round": n + first - 1}
        received += resumable.feed(data)
    return received


def test_rounds_of_an_agent_continue_after_an_interruption() -> None:
    assert agent("let me see", "it is", "4").end("4") == ""
    resumed = agent("let me see", "it i")
    assert feed_rounds(resumed, "it is 4", attempt=2, first=2) == "s 4"
    assert resumed.end("it is 4") == ""
    restarted = agent("let me see", "it i")
    assert feed_rounds(restarted, "let me see", "it is 4", attempt=2) == "s 4"
    with pytest.raises(AnswerMismatch):
        feed_rounds(agent("let me see", "it i"), "let me see now", attempt=2)
    interrupted = agent("let me see")
    interrupted.mark_gap()
    assert feed_rounds(interrupted, "x", first=2) == ""
    assert interrupted.end("it is 4") == f"{PARAGRAPH}it is 4"
