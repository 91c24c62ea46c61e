"""Parsing of answers: text, reasoning, tool calls and usage, streamed or in one piece."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_answers import (
    Answer,
    body_answer,
    reasoning_answer,
    text_answer,
    tokens,
    tool_call_answer,
)
from tests.support.model_server import Dialect, ModelServer
from tests.worker.features.model.kit import (
    ClientRig,
    FakeJob,
    RecordingSink,
    open_client,
    settings_for,
)
from worker.features.model.errors import ModelAnswerInvalid
from worker.features.model.types import ChatRequest, ToolCall, Usage


async def test_a_streamed_answer(server: ModelServer, client_rig: ClientRig) -> None:
    server.add_text("Hello there, friend.")
    notes = RecordingSink()
    answer = await client_rig.ask("one two", notes)
    assert answer.text == notes.received == "Hello there, friend."
    assert len(notes.pieces) == 3
    assert answer.finish_reason == "stop"
    assert answer.model == "scripted-1"
    assert answer.usage == Usage(2, 3)
    assert answer.first_token_ms is not None
    assert 0 <= answer.first_token_ms <= answer.ms
    assert not answer.canceled


async def test_the_request_body(server: ModelServer, client_rig: ClientRig) -> None:
    server.add_text("ok")
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
    await client_rig.client.complete(job.context, request, RecordingSink())
    seen = server.requests[0]
    assert seen.headers["traceparent"] == job.traceparent
    assert "authorization" not in seen.headers
    assert seen.body == {
        "model": "scripted-1",
        "messages": request.messages,
        "max_tokens": 5,
        "temperature": 0.0,
        "stop": ["x"],
        "tools": request.tools,
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
    }


async def test_another_model_of_the_same_server(server: ModelServer, client_rig: ClientRig) -> None:
    server.add_text("ok")
    request = ChatRequest([{"role": "user", "content": "hi"}], model="other")
    answer = await client_rig.client.complete(FakeJob().context, request, RecordingSink())
    assert server.requests[0].body["model"] == answer.model == "other"


@pytest.mark.parametrize("member", ["reasoning_content", "reasoning"])
async def test_reasoning_comes_first(
    server: ModelServer, client_rig: ClientRig, member: str
) -> None:
    server.add_answers(reasoning_answer("let me see", "four", member))
    notes = RecordingSink()
    answer = await client_rig.ask(sink=notes)
    assert (answer.reasoning, answer.text) == ("let me see", "four")
    assert [kind for kind, _ in notes.pieces] == ["reasoning"] * 3 + ["text"]


async def test_progress_while_the_prompt_is_read(
    server: ModelServer, client_rig: ClientRig
) -> None:
    reading: list[Any] = [
        {"choices": [], "prompt_progress": {"total": 30, "cache": 0, "processed": done}}
        for done in (10, 30)
    ]
    server.add_answers(Answer([*reading, *tokens("yes")]))
    notes = RecordingSink()
    answer = await client_rig.ask(sink=notes)
    assert notes.pieces == [("progress", (10, 30)), ("progress", (30, 30)), ("text", "yes")]
    assert answer.text == "yes"


async def test_tool_calls_in_pieces(server: ModelServer, client_rig: ClientRig) -> None:
    server.add_answers(
        tool_call_answer(("clock", {"zone": "utc"}), ("add", {"a": 1, "b": 2}), text="Let me look.")
    )
    answer = await client_rig.ask()
    assert answer.finish_reason == "tool_calls"
    assert answer.text == "Let me look."
    assert answer.tool_calls == (
        ToolCall("call_0", "clock", '{"zone": "utc"}'),
        ToolCall("call_1", "add", '{"a": 1, "b": 2}'),
    )


async def test_tool_calls_with_wrong_indexes(server: ModelServer, client_rig: ClientRig) -> None:
    """All with index 0, or without; arguments as an object; no useful finish reason."""

    def piece(**more: Any) -> dict[str, Any]:
        return {"tool_calls": [more]}

    server.add_answers(
        Answer(
            [
                piece(index=0, id="a", function={"name": "f", "arguments": {"x": 1}}),
                piece(index=0, id="b", function={"name": "g", "arguments": '{"y"'}),
                piece(index=0, id="b", function={"arguments": ":2}"}),
                piece(function={"name": "h"}),
                piece(function={"arguments": "{}"}),
            ],
            finish=None,
        )
    )
    answer = await client_rig.ask()
    assert answer.tool_calls == (
        ToolCall("a", "f", '{"x":1}'),
        ToolCall("b", "g", '{"y":2}'),
        ToolCall("call_2", "h", "{}"),
    )
    assert answer.finish_reason == "tool_calls"


async def test_usage_of_llama_server(server: ModelServer, client_rig: ClientRig) -> None:
    timings = {"cache_n": 8, "prompt_n": 2, "predicted_n": 4, "predicted_per_second": 107.234}
    server.add_answers(replace(text_answer("a b"), usage={}, timings=timings))
    answer = await client_rig.ask()
    assert answer.usage == Usage(10, 4, 8)
    assert answer.tokens_per_s == 107.23


async def test_missing_usage(server: ModelServer, client_rig: ClientRig) -> None:
    server.add_answers(text_answer("a b c", 0.02, usage={}))
    answer = await client_rig.ask()
    assert answer.usage == Usage(0, 3)
    assert answer.tokens_per_s is not None
    assert 0 < answer.tokens_per_s < 100


async def test_invalid_usage_is_ignored(server: ModelServer, client_rig: ClientRig) -> None:
    usage = {"prompt_tokens": "many", "completion_tokens": -1, "prompt_tokens_details": 3}
    server.add_answers(
        replace(text_answer("a"), usage=usage, timings={"predicted_per_second": "fast"})
    )
    answer = await client_rig.ask()
    assert (answer.text, answer.usage, answer.tokens_per_s) == ("a", Usage(), None)


async def test_a_server_that_does_not_stream(server: ModelServer, client_rig: ClientRig) -> None:
    server.add_answers(replace(text_answer("all at once"), streams=False))
    server.add_answers(replace(tool_call_answer(("f", {"x": 1})), streams=False))
    notes = RecordingSink()
    answer = await client_rig.ask(sink=notes)
    assert notes.pieces == [("text", "all at once")]
    assert (answer.text, answer.finish_reason) == ("all at once", "stop")
    assert answer.usage.completion_tokens == 3
    answer = await client_rig.ask()
    assert answer.tool_calls == (ToolCall("call_0", "f", '{"x": 1}'),)


async def test_only_the_first_of_several_choices(
    server: ModelServer, client_rig: ClientRig
) -> None:
    def chunk(*texts: str) -> dict[str, Any]:
        return {"choices": [{"index": n, "delta": {"content": t}} for n, t in enumerate(texts)]}

    server.add_answers(Answer([chunk("a", "x"), chunk("b", "y")]))
    assert (await client_rig.ask()).text == "ab"


async def test_an_empty_answer_is_valid(server: ModelServer, client_rig: ClientRig) -> None:
    server.add_answers(Answer([]))
    answer = await client_rig.ask()
    assert (answer.text, answer.finish_reason, answer.first_token_ms) == ("", "stop", None)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(replace(text_answer("a b"), done=False), id="no [DONE]"),
        pytest.param(replace(text_answer("a b"), finish=None), id="no finish reason"),
        pytest.param(
            Answer([*tokens("a b"), b": ping\n\n", b"event: x\nid: 1\nretry: 3\n\n"]), id="pings"
        ),
        pytest.param(
            Answer([{"role": "assistant", "content": None}, *tokens("a b")]), id="role first"
        ),
        pytest.param(Answer([{"content": [{"type": "text", "text": "a b"}]}]), id="parts"),
        pytest.param(
            Answer([b'data: {"choices":[{"delta":{"content":"a b"}}]}\r\n\r\n']), id="crlf"
        ),
        pytest.param(
            Answer([b'data: {"choices":[{"delta":\ndata: {"content":"a b"}}]}\n\n']), id="two lines"
        ),
        pytest.param(
            Answer([b'data:{"choices":[{"delta":{"cont', 0.01, b'ent":"a b"}}]}\n', 0.01, b"\n"]),
            id="cut anywhere",
        ),
    ],
)
async def test_peculiarities_of_servers(
    server: ModelServer, client_rig: ClientRig, answer: Answer
) -> None:
    server.add_answers(answer)
    assert (await client_rig.ask()).text == "a b"


async def test_split_surrogates_are_accepted(server: ModelServer, client_rig: ClientRig) -> None:
    halves = [rb'data: {"choices":[{"delta":{"content":"\ud83d"}}]}' + b"\n\n"]
    halves += [rb'data: {"choices":[{"delta":{"content":"\ude00"}}]}' + b"\n\n"]
    server.add_answers(Answer(halves))
    assert (await client_rig.ask()).text.encode("utf-16", "surrogatepass").decode("utf-16") == "😀"


def page(text: bytes) -> Answer:
    return body_answer(text, headers={"Content-Type": "text/html"})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(page(b"<html>login</html>"), "web page", id="html"),
        pytest.param(body_answer(b"not json"), "invalid JSON", id="text"),
        pytest.param(body_answer(b'"x"'), "not an object", id="a string"),
        pytest.param(body_answer({}), "without a choice", id="empty"),
        pytest.param(body_answer({"choices": {}}), "not a list", id="choices"),
        pytest.param(body_answer({"choices": [1]}), "not an object", id="choice"),
        pytest.param(body_answer({"choices": [{"message": 1}]}), "not an object", id="message"),
        pytest.param(body_answer({"choices": [{"message": {"content": 1}}]}), "text", id="content"),
        pytest.param(
            body_answer({"choices": [{"message": {"tool_calls": {"a": 1}}}]}),
            "tool calls",
            id="calls",
        ),
        pytest.param(
            body_answer({"choices": [{"message": {"tool_calls": [1]}}]}), "tool call", id="call"
        ),
        pytest.param(body_answer(b"x" * 9_000_000), "more than", id="huge"),
        pytest.param(Answer([b"data: {oops\n\n"]), "invalid JSON", id="stream of invalid JSON"),
        pytest.param(Answer([b"data: [1]\n\n"]), "not an object", id="stream of lists"),
        pytest.param(Answer([], finish=None), "without a choice", id="nothing"),
        pytest.param(Answer([b"data: " + b"x" * 1_100_000]), "more than", id="huge event"),
        pytest.param(
            Answer([b"data: " + json.dumps("x" * 1_100_000).encode() + b"\n\n"]),
            "more than",
            id="huge event, whole",
        ),
        pytest.param(Answer([{"content": "x" * 900_000}] * 5), "more than", id="endless"),
    ],
)
async def test_invalid_answers_are_reported(
    server: ModelServer, client_rig: ClientRig, answer: Answer, words: str
) -> None:
    server.add_answers(answer)
    with pytest.raises(ModelAnswerInvalid, match=words) as caught:
        await client_rig.ask()
    assert caught.value.kind == "model_answer_invalid"
    assert len(server.requests) == 1
    server.add_text("fine again")
    assert (await client_rig.ask()).text == "fine again"


async def test_a_server_that_refuses_unknown_members(
    server: ModelServer, client_rig: ClientRig
) -> None:
    server.strict = True
    server.add_text("one")
    server.add_text("two")
    assert (await client_rig.ask()).text == "one"
    assert (await client_rig.ask()).text == "two"
    asked = [set(seen.body) for seen in server.requests]
    assert ["return_progress" in members for members in asked] == [True, False, False]


@pytest.mark.parametrize("dialect", [Dialect.VLLM, Dialect.OLLAMA])
async def test_other_servers_get_no_members_of_llama_server(
    dialect: Dialect, tmp_path: Path
) -> None:
    async with ModelServer(dialect=dialect) as server:
        server.strict = True
        server.add_text("hello")
        async with open_client(settings_for(server, tmp_path)) as client_rig:
            assert client_rig.client.name == "scripted-1"
            assert client_rig.limits.history == [(1, "")]
            assert (await client_rig.ask()).text == "hello"
        assert len(server.requests) == 1


async def test_connections_are_kept(server: ModelServer, tmp_path: Path) -> None:
    async with open_client(settings_for(server, tmp_path), watching=False) as client_rig:
        for _ in range(4):
            await client_rig.ask("count to 3")
        assert server.connections == 1
