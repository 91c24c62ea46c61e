"""Parsing of answers: text, reasoning, tool calls, usage, SSE however it is split, and JSON."""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.worker.features.model.errors import ModelAnswerInvalid
from sluice.worker.features.model.output_parsing import NoJsonFound, find_json, nesting_depth
from sluice.worker.features.model.types import ChatRequest, ToolCall, Usage
from sluice.worker.features.model.wire.chunks import SseParser
from tests.support.model.answers import (
    Answer,
    body_answer,
    text_answer,
    tokens,
    tool_call_answer,
)
from tests.support.model.server import Dialect, ModelServer
from tests.support.worker.model import FakeJob, MakeModel, ModelHarness, RecordingSink


async def test_a_streamed_answer(model: ModelHarness) -> None:
    model.server.add_text("Hello there, friend.")
    sink = RecordingSink()
    answer = await model.ask("one two", sink)
    assert answer.text == sink.received == "Hello there, friend."
    assert len(sink.pieces) == 3
    assert (answer.finish_reason, answer.model, answer.usage) == ("stop", "scripted-1", Usage(2, 3))
    assert answer.first_token_ms is not None
    assert 0 <= answer.first_token_ms <= answer.ms
    assert not answer.canceled
    model.server.add_answers(Answer([]))
    answer = await model.ask()
    assert (answer.text, answer.finish_reason, answer.first_token_ms) == ("", "stop", None)


async def test_the_request(model: ModelHarness) -> None:
    job = FakeJob()
    job.traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    request = ChatRequest(
        [{"role": "user", "content": "hi"}],
        max_tokens=5,
        temperature=0.0,
        stop=["x"],
        tools=[{"type": "function", "function": {"name": "f"}}],
        tool_choice="auto",
    )
    await model.complete(request, job=job)
    seen = model.server.requests[0]
    assert seen.headers["traceparent"] == job.traceparent
    assert "authorization" not in seen.headers
    assert seen.body == {
        "model": "scripted-1", "messages": request.messages, "max_tokens": 5, "temperature": 0.0,
        "stop": ["x"], "tools": request.tools, "tool_choice": "auto", "stream": True,
        "stream_options": {"include_usage": True}, "return_progress": True,
    }  # fmt: skip
    answer = await model.complete(replace(request, model="other"))
    assert model.server.requests[1].body["model"] == answer.model == "other"


@pytest.mark.parametrize("member", ["reasoning_content", "reasoning"])
async def test_reasoning_comes_first(model: ModelHarness, member: str) -> None:
    thoughts = [{member: word} for word in ("let", " me", " see")]
    model.server.add_answers(Answer([*thoughts, *tokens("four")]))
    sink = RecordingSink()
    answer = await model.ask(sink=sink)
    assert (answer.reasoning, answer.text) == ("let me see", "four")
    assert [kind for kind, _ in sink.pieces] == ["reasoning"] * 3 + ["text"]


async def test_progress_while_the_prompt_is_read(model: ModelHarness) -> None:
    reading: list[Any] = [
        {"choices": [], "prompt_progress": {"total": 30, "cache": 0, "processed": done}}
        for done in (10, 30)
    ]
    model.server.add_answers(Answer([*reading, *tokens("yes")]))
    sink = RecordingSink()
    assert (await model.ask(sink=sink)).text == "yes"
    assert sink.pieces == [("progress", (10, 30)), ("progress", (30, 30)), ("text", "yes")]


async def test_tool_calls_in_pieces(model: ModelHarness) -> None:
    calls = ("clock", {"zone": "utc"}), ("add", {"a": 1, "b": 2})
    model.server.add_answers(tool_call_answer(*calls, text="Let me look."))
    answer = await model.ask()
    assert (answer.finish_reason, answer.text) == ("tool_calls", "Let me look.")
    assert answer.tool_calls == (
        ToolCall("call_0", "clock", '{"zone": "utc"}'),
        ToolCall("call_1", "add", '{"a": 1, "b": 2}'),
    )


async def test_tool_calls_with_wrong_indexes(model: ModelHarness) -> None:
    """All with index 0, or without; arguments as an object; no useful finish reason."""
    pieces: list[dict[str, Any]] = [
        {"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": 1}}},
        {"index": 0, "id": "b", "function": {"name": "g", "arguments": '{"y"'}},
        {"index": 0, "id": "b", "function": {"arguments": ":2}"}},
        {"function": {"name": "h"}},
        {"function": {"arguments": "{}"}},
    ]
    model.server.add_answers(Answer([{"tool_calls": [piece]} for piece in pieces], finish=None))
    answer = await model.ask()
    assert answer.finish_reason == "tool_calls"
    assert answer.tool_calls == (
        ToolCall("a", "f", '{"x":1}'),
        ToolCall("b", "g", '{"y":2}'),
        ToolCall("call_2", "h", "{}"),
    )


async def test_usage_is_reported_by_the_server_or_counted(model: ModelHarness) -> None:
    timings = {"cache_n": 8, "prompt_n": 2, "predicted_n": 4, "predicted_per_second": 107.234}
    model.server.add_answers(replace(text_answer("a b"), usage={}, timings=timings))
    answer = await model.ask()
    assert (answer.usage, answer.tokens_per_s) == (Usage(10, 4, 8), 107.23)
    model.server.add_answers(text_answer("a b c", 0.02, usage={}))
    answer = await model.ask()
    assert answer.usage == Usage(0, 3)
    assert answer.tokens_per_s is not None
    assert 0 < answer.tokens_per_s < 100
    usage = {"prompt_tokens": "many", "completion_tokens": -1, "prompt_tokens_details": 3}
    speed = {"predicted_per_second": "fast"}
    model.server.add_answers(replace(text_answer("a"), usage=usage, timings=speed))
    answer = await model.ask()
    assert (answer.text, answer.usage, answer.tokens_per_s) == ("a", Usage(), None)


async def test_a_server_that_does_not_stream(model: ModelHarness) -> None:
    whole = text_answer("all at once"), tool_call_answer(("f", {"x": 1}))
    model.server.add_answers(*(replace(each, streams=False) for each in whole))
    sink = RecordingSink()
    answer = await model.ask(sink=sink)
    assert sink.pieces == [("text", "all at once")]
    assert (answer.text, answer.finish_reason) == ("all at once", "stop")
    assert answer.usage.completion_tokens == 3
    assert (await model.ask()).tool_calls == (ToolCall("call_0", "f", '{"x": 1}'),)


def choices(*texts: str) -> dict[str, Any]:
    return {"choices": [{"index": n, "delta": {"content": t}} for n, t in enumerate(texts)]}


PECULIAR: dict[str, Answer] = {
    "no [DONE]": replace(text_answer("a b"), done=False),
    "no finish reason": replace(text_answer("a b"), finish=None),
    "pings": Answer([*tokens("a b"), b": ping\n\n", b"event: x\nid: 1\nretry: 3\n\n"]),
    "role first": Answer([{"role": "assistant", "content": None}, *tokens("a b")]),
    "parts": Answer([{"content": [{"type": "text", "text": "a b"}]}]),
    "crlf": Answer([b'data: {"choices":[{"delta":{"content":"a b"}}]}\r\n\r\n']),
    "two lines": Answer([b'data: {"choices":[{"delta":\ndata: {"content":"a b"}}]}\n\n']),
    "cut anywhere": Answer(
        [b'data:{"choices":[{"delta":{"cont', 0.01, b'ent":"a b"}}]}\n', 0.01, b"\n"]
    ),
    "several choices": Answer([choices("a", "x"), choices(" b", "y")]),
}


async def test_peculiarities_of_servers(model: ModelHarness) -> None:
    for name, answer in PECULIAR.items():
        model.server.add_answers(answer)
        assert (await model.ask()).text == "a b", name
    # Surrogate pairs may be split.
    model.server.add_answers(Answer([{"content": "\ud83d"}, {"content": "\ude00"}]))
    assert (await model.ask()).text.encode("utf-16", "surrogatepass").decode("utf-16") == "😀"


def message(**members: Any) -> Answer:
    return body_answer({"choices": [{"message": members}]})


HTML = {"Content-Type": "text/html"}


def invalid_answers() -> dict[str, tuple[Answer, str]]:
    """Answers and parts of the errors. A function, because they have 16 MB."""
    long_event = json.dumps("x" * 1_100_000).encode()
    return {
        "html": (body_answer(b"<html>login</html>", headers=HTML), "web page"),
        "text": (body_answer(b"not json"), "invalid JSON"),
        "a string": (body_answer(b'"x"'), "not an object"),
        "empty": (body_answer({}), "without a choice"),
        "choices": (body_answer({"choices": {}}), "not a list"),
        "choice": (body_answer({"choices": [1]}), "not an object"),
        "message": (body_answer({"choices": [{"message": 1}]}), "not an object"),
        "content": (message(content=1), "text"),
        "calls": (message(tool_calls={"a": 1}), "tool calls"),
        "call": (message(tool_calls=[1]), "tool call"),
        "huge": (body_answer(b"x" * 9_000_000), "more than"),
        "stream of invalid JSON": (Answer([b"data: {oops\n\n"]), "invalid JSON"),
        "stream of lists": (Answer([b"data: [1]\n\n"]), "not an object"),
        "nothing": (Answer([], finish=None), "without a choice"),
        "huge event": (Answer([b"data: " + b"x" * 1_100_000]), "more than"),
        "huge event, whole": (Answer([b"data: " + long_event + b"\n\n"]), "more than"),
        "endless": (Answer([{"content": "x" * 900_000}] * 5), "more than"),
    }


async def test_invalid_answers_are_reported(model: ModelHarness) -> None:
    for name, (answer, words) in invalid_answers().items():
        model.server.requests.clear()
        model.server.add_answers(answer)
        with pytest.raises(ModelAnswerInvalid, match=words) as caught:
            await model.ask()
        assert caught.value.kind == "model_answer_invalid"
        assert len(model.server.requests) == 1, name
        model.server.add_text("fine again")
        assert (await model.ask()).text == "fine again"


async def test_a_server_that_refuses_unknown_members(model: ModelHarness) -> None:
    model.server.strict = True
    for text in ("one", "two"):
        model.server.add_text(text)
        assert (await model.ask()).text == text
    asked = ["return_progress" in seen.body for seen in model.server.requests]
    assert asked == [True, False, False]


@pytest.mark.parametrize("dialect", [Dialect.VLLM, Dialect.OLLAMA])
async def test_other_servers_get_no_members_of_llama_server(
    make_model: MakeModel, dialect: Dialect
) -> None:
    async with ModelServer(dialect=dialect) as server:
        server.strict = True
        server.add_text("hello")
        model = await make_model(server)
        assert model.client.name == "scripted-1"
        assert model.limits.history == [(1, "")]
        assert (await model.ask()).text == "hello"
        assert len(server.requests) == 1


async def test_connections_are_kept(make_model: MakeModel) -> None:
    model = await make_model(watching=False)
    for _ in range(4):
        await model.ask("count to 3")
    assert model.server.connections == 1


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (' {"a": 1}\n', {"a": 1}),
        ("```json\n[1]\n```", [1]),
        ("```\n[1]\n```\nand\n```json\n[1, 2]\n```", [1, 2]),
        ("```python\n[3]\n```\n{}", [3]),
        ('As in [1], {"a": [1, 2]} it is.', {"a": [1, 2]}),
        ('<think>Is it {"b": 2}? No.</think>{"a": 1}', {"a": 1}),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ('"x"', "x"),
        ('{"a": "\ud83d"}', {"a": "?"}),
    ],
)
def test_json_is_found(text: str, value: Any) -> None:
    assert find_json(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "   ", "no", "{", '{"a": NaN}', "[1,", "{'a': 1}", "[" * 100_000, "{" * 100_000,
     "[" * 65 + "]" * 65],
)  # fmt: skip
def test_text_without_json(text: str) -> None:
    with pytest.raises(NoJsonFound):
        find_json(text)


@given(values, st.sampled_from(["{}", "```json\n{}\n```", "Well:\n\n```\n{}\n```\nThat is it."]))
def test_any_value_in_any_text(value: Any, around: str) -> None:
    assert find_json(around.replace("{}", json.dumps(value))) == value


@given(st.text(alphabet='[]{}",:1a \n`'))
def test_any_text(text: str) -> None:
    with contextlib.suppress(NoJsonFound):
        json.dumps(find_json(text))


LINES = st.sampled_from(
    [b"data: a", b"data:b", b"data", b"data:  c", b": ping", b"event: x", b"id: 1", b"error: e",
     b""]
)  # fmt: skip
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def parsed(*pieces: bytes) -> list[bytes]:
    parser = SseParser()
    found = [event for piece in pieces for event in parser.feed(piece)]
    return found + parser.end()


def test_parsing_of_events() -> None:
    stream = (
        b": hi\n\ndata: a\ndata: b\n\nid: 3\n\ndata:\n\nevent: x\ndata:c\n\nerror: d\n\ndata: e"
    )
    assert parsed(stream) == [b"a\nb", b"", b"c", b'{"error":d}', b"e"]
    parser = SseParser()  # an event comes as soon as it is whole
    assert parser.feed(b"data: a\r\n\r") == [b"a"]
    assert parser.feed(b"\ndata: b\r\n\r\n") == [b"b"]


@given(st.lists(st.tuples(LINES, ENDS)), st.lists(st.integers(0, 200)))
def test_cuts_and_line_ends_make_no_difference(
    lines: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(line + end for line, end in lines)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[a:b] for a, b in itertools.pairwise(places)]
    assert parsed(*pieces) == parsed(stream)
    assert parsed(*(stream[n : n + 1] for n in range(len(stream)))) == parsed(stream)
    alike = {
        tuple(parsed(b"".join(line + end for line, _ in lines))) for end in (b"\n", b"\r\n", b"\r")
    }
    assert len(alike) == 1


def test_the_size_of_an_event_is_limited() -> None:
    for *first, last in (
        [b"data: " + b"x" * 200],
        [b"x" * 200],
        [b"data: " + b"x" * 60 + b"\n", b"data: " + b"x" * 60 + b"\n"],
        [b"data: " + b"x" * 200 + b"\n\n"],
        [b"data: " + b"x" * 60, b"x" * 60],
    ):
        parser = SseParser(most_bytes=100)
        for piece in first:
            parser.feed(piece)
        with pytest.raises(ModelAnswerInvalid, match="100 bytes"):
            parser.feed(last)
    parser = SseParser(most_bytes=100)
    for _ in range(100):  # but not their number
        assert parser.feed(b"data: " + b"x" * 90 + b"\n\n") == [b"x" * 90]
        assert parser.feed(b": ping\n\n") == []


def test_depth() -> None:
    assert [nesting_depth(value) for value in (1, [], {"a": []}, [[], {"a": [[]]}])] == [0, 1, 2, 4]
