"""The task `chat`: text, conversations, tool calls and JSON answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.worker.handlers.model_kit import (
    Hang,
    StageMaker,
    cut_off,
    joined,
    stage_maker,
    wants,
)
from tests.worker.kit import RigMaker
from worker.features.model.errors import ModelFailed, ModelRefused
from worker.features.model.types import Completion, ToolCall, Usage
from worker.handlers import chat

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
EVA = {"name": "Eva", "age": 7}


@pytest.fixture
async def stage(fake_rig: RigMaker) -> AsyncIterator[StageMaker]:
    async for make in stage_maker(fake_rig, "chat", chat.add_handler):
        yield make


def form(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


async def test_a_text_is_answered(stage: StageMaker) -> None:
    on = stage("Hello there, how are you today?")
    result, story = await on.run(text="hi")
    assert isinstance(result.pop("ms"), int)
    assert result == {
        "text": "Hello there, how are you today?",
        "finish_reason": "stop",
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 6,
            "total_tokens": 13,
            "cached_tokens": 0,
        },
        "first_token_ms": 5,
        "tokens_per_s": 20.0,
        "model": "scripted",
    }
    assert joined(story, "worker.chat") == result["text"]
    assert story[2][2] == {"delta": "Hello", "n": 1, "attempt": 1}
    [(type, _, usage), (end, _, _)] = story[-2:]
    assert (type, usage["total_tokens"], usage["attempt"], end) == ("usage", 13, 1, "done")
    assert on.model.requests[0].messages == [{"role": "user", "content": "hi"}]


async def test_a_conversation_and_every_parameter_reach_the_model(stage: StageMaker) -> None:
    on = stage("ok")
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    function = {"name": "f", "parameters": {"type": "object"}, "strict": False}
    await on.run(
        messages=[
            {"role": "user", "content": "a", "name": "eva"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "42", "tool_call_id": "c1"},
        ],
        system="be brief",
        max_tokens=9,
        temperature=0,
        top_p=0.5,
        stop="END",
        seed=-1,
        presence_penalty=1,
        frequency_penalty=-1.5,
        tools=[{"type": "function", "function": function}],
        tool_choice={"type": "function", "function": {"name": "f"}},
        response_format={"type": "text"},
        model="scripted",
    )
    [request] = on.model.requests
    assert request.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a", "name": "eva"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]
    assert (request.max_tokens, request.temperature, request.top_p) == (9, 0, 0.5)
    assert (request.stop, request.seed) == (["END"], -1)
    assert (request.presence_penalty, request.frequency_penalty) == (1, -1.5)
    assert request.tools == [{"type": "function", "function": function}]
    assert request.tool_choice == {"type": "function", "function": {"name": "f"}}
    assert request.response_format is None


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({"text": "a", "bogus": 1, "x": {}}, ["bogus: Extra", "x: Extra"]),
        ({}, ["text or messages"]),
        ({"text": "a", "messages": [{"role": "user", "content": "a"}]}, ["text or messages"]),
        ({"text": ""}, ["text:"]),
        ({"messages": []}, ["messages:"]),
        ({"messages": [{"role": "robot", "content": "a"}]}, ["messages.0.role"]),
        ({"messages": [{"role": "user", "content": "a", "mood": 1}]}, ["messages.0.mood"]),
        ({"messages": [{"role": "user"}]}, ["content is missing"]),
        ({"messages": [{"role": "tool", "content": "a"}]}, ["tool_call_id"]),
        ({"messages": [{"role": "system", "content": "a"}], "system": "b"}, ["not both"]),
        ({"text": "a", "max_tokens": True}, ["max_tokens"]),
        ({"text": "a", "temperature": "1"}, ["temperature"]),
        ({"text": "a", "temperature": 3}, ["temperature"]),
        ({"text": "a", "stop": [""]}, ["stop.0"]),
        ({"text": "a", "tools": []}, ["tools"]),
        ({"text": "a", "tools": ["clock", {"type": "function"}]}, ["not both"]),
        ({"text": "a", "tools": [{"type": "function"}]}, ["function: Field required"]),
        ({"text": "a", "tool_choice": "auto"}, ["tool_choice needs tools"]),
        ({"text": "a", "response_format": {"type": "xml"}}, ["response_format.type"]),
        ({"text": "a", "response_format": {"type": "json_schema"}}, ["json_schema"]),
        ({"text": "a", "response_format": form("string")}, ["schema"]),
        ({"text": "a", "response_format": form({"enum": ["x" * 70_000]})}, ["65536 at most"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
async def test_errors_of_a_payload_are_named(
    stage: StageMaker, payload: dict[str, Any], named: list[str]
) -> None:
    on = stage()
    error = await on.fail(**payload)
    assert error["kind"] == "invalid_payload"
    assert all(name in error["message"] for name in named), error["message"]
    assert on.model.requests == []


async def test_another_model_name_is_refused(stage: StageMaker) -> None:
    error = await stage().fail(text="a", model="gpt-5")
    assert error["kind"] == "model_refused"
    assert "'gpt-5'" in error["message"]
    assert "'scripted'" in error["message"]


async def test_tool_calls_are_returned(stage: StageMaker) -> None:
    on = stage(wants(ToolCall("c1", "f", '{"a":1}')))
    tool = {"type": "function", "function": {"name": "f"}}
    result, _ = await on.run(text="a", tools=[tool], response_format=form(PERSON))
    assert result["finish_reason"] == "tool_calls"
    assert result["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    ]
    assert "json" not in result


async def test_reasoning_and_surrogates_are_kept_as_valid_json(
    stage: StageMaker,
) -> None:
    said = Completion("so \ud83d\ude00 \ud83d", "stop", "scripted", Usage(), "hm \ud83d")
    result, story = await stage(said).run(text="a")
    assert (result["text"], result["reasoning"]) == ("so 😀 �", "hm �")
    assert joined(story, "worker.chat") == result["text"]


async def test_a_canceled_job_keeps_its_partial_answer(stage: StageMaker) -> None:
    kept = await stage(Hang("Once upon a")).cancel_in_the_middle(
        text="a tale", response_format=form(PERSON)
    )
    assert (kept["text"], kept["finish_reason"]) == ("Once upon a", "canceled")
    assert kept["usage"]["completion_tokens"] == 3
    assert "json" not in kept


async def test_events_carry_the_attempt(stage: StageMaker) -> None:
    on = stage(ModelFailed("hiccup"), "fine now")
    on.rig.start()
    [job_id] = await on.rig.post(payload=b'{"text":"a"}')
    assert await on.rig.settled(job_id) == b"done"
    story = await on.rig.parsed_events(job_id)
    said = [data for type, _, data in story if type == "message"]
    assert {data["attempt"] for data in said} == {2}
    assert said[0]["n"] == 1


# -- JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        '{"name": "Eva", "age": 7}',
        '```json\n{"name": "Eva", "age": 7}\n```',
        'Here [1] you are:\n```\n{"name": "Eva", "age": 7}\n```\nGood luck!',
        'Sure: {"name": "Eva", "age": 7} is Eva.',
        '<think>{"name": 1}?</think>\n{"name": "Eva", "age": 7}',
    ],
)
async def test_json_is_found_wherever_it_stands(stage: StageMaker, said: str) -> None:
    on = stage(said)
    result, _ = await on.run(text="who?", response_format=form(PERSON, strict=True))
    assert result["json"] == EVA
    assert result["text"] == said
    assert on.model.requests[0].response_format == form(PERSON, strict=True)


async def test_an_invalid_answer_is_requested_again(stage: StageMaker) -> None:
    on = stage('{"name": "Eva", "age": -1}', '{"name": "Eva", "age": 7}')
    result, story = await on.run(text="who?", response_format=form(PERSON))
    assert result["json"] == EVA
    assert result["text"] == joined(story, "worker.chat")
    assert result["usage"] == {
        "prompt_tokens": 14,
        "completion_tokens": 8,
        "total_tokens": 22,
        "cached_tokens": 0,
    }
    again = on.model.requests[1]
    assert again.messages[-2] == {"role": "assistant", "content": '{"name": "Eva", "age": -1}'}
    assert 'at "/age": -1 is less than the minimum' in on.model.last_message(1)
    assert '"additionalProperties":false' in on.model.last_message(1)
    assert [type for type, _, _ in story].count("usage") == 1


async def test_if_the_format_is_refused_it_goes_into_the_prompt(stage: StageMaker) -> None:
    on = stage(ModelRefused("no grammars here", 400), "Eva is seven.", '{"name":"Eva","age":7}')
    result, story = await on.run(text="who?", system="be brief", response_format=form(PERSON))
    assert result["json"] == EVA
    _, plain, again = on.model.requests
    assert plain.response_format is again.response_format is None
    assert plain.messages[0]["role"] == "system"
    assert plain.messages[0]["content"].startswith("be brief\n\nAnswer with JSON")
    assert joined(story, "worker.chat") == result["text"]


async def test_if_the_prompt_is_refused_too_the_job_fails(stage: StageMaker) -> None:
    on = stage(ModelRefused("too long", 400), ModelRefused("still too long", 400))
    error = await on.fail(text="who?", response_format=form(PERSON))
    assert (error["kind"], error["message"]) == ("model_refused", "too long")
    on = stage(ModelRefused("who are you?", 401))
    assert (await on.fail(text="who?", response_format=form(PERSON)))["kind"] == "model_refused"


async def test_an_invalid_answer_is_requested_again_only_once(stage: StageMaker) -> None:
    on = stage("I do not know", '{"name": "Eva"}')
    error = await on.fail(text="who?", response_format=form(PERSON))
    assert error["kind"] == "model_answer_invalid"
    assert "'age' is a required property" in error["message"]
    assert '{"name": "Eva"}' in error["message"]
    assert len(on.model.requests) == 2


async def test_an_answer_that_was_cut_off_says_so(stage: StageMaker) -> None:
    on = stage(cut_off('{"name": "Ev'))
    error = await on.fail(text="who?", max_tokens=16, response_format=form(PERSON))
    assert error["kind"] == "model_answer_invalid"
    assert "cut off after 16 tokens: raise max_tokens" in error["message"]


async def test_an_object_without_a_schema(stage: StageMaker) -> None:
    on = stage("[1, 2]", '{"a": [1, 2, 18446744073709551616]}')
    result, _ = await on.run(text="a", response_format={"type": "json_object"})
    assert result["json"] == {"a": [1, 2, 18446744073709551616]}
    assert "not a JSON object" in on.model.last_message(1)


async def test_null_is_a_value_too(stage: StageMaker) -> None:
    result, _ = await stage("null").run(text="a", response_format=form({"type": "null"}))
    assert result["json"] is None


HOSTILE = {
    "no schema": ({"type": "objekt"}, "objekt"),
    "remote": ({"$ref": "http://127.0.0.1:9/schema.json"}, "127.0.0.1:9"),
    "remote within": ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "passwd"),
    "dangling": ({"properties": {"a": {"$ref": "#/$defs/a"}}}, "#/$defs/a"),
    "endless": ({"$ref": "#"}, "endless cycle"),
    "bad pattern": ({"pattern": "("}, "regex"),
    "many ways": (
        {
            "$ref": "#/$defs/0",
            "$defs": {
                **{str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(40)},
                "40": True,
            },
        },
        "more than 2 s",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_a_hostile_schema_is_refused_before_the_model_is_asked(
    stage: StageMaker, case: str
) -> None:
    schema, named = HOSTILE[case]
    on = stage()
    error = await on.fail(text="a", response_format=form(schema))
    assert (error["kind"], on.model.requests) == ("invalid_payload", [])
    assert "response_format.json_schema.schema: " in error["message"]
    assert named in error["message"]


async def test_a_catastrophic_pattern_does_not_block_the_worker(stage: StageMaker) -> None:
    on = stage('"' + "a" * 64 + '!"', '"aaa"')
    endless = form({"type": "string", "pattern": "^(a+)+$"})
    error = await on.fail(text="a", response_format=endless)
    assert error["kind"] == "invalid_payload"
    assert "more than 2 s" in error["message"]
    outcome, _ = await on.rig.execute(b'{"text":"a"}')  # still running
    assert outcome.value == "done"


async def test_a_schema_that_refers_to_itself_is_fine(stage: StageMaker) -> None:
    tree = {"properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
    deep: Any = {}
    for _ in range(30):
        deep = {"kids": [deep]}
    on = stage(str(deep).replace("'", '"'))
    result, _ = await on.run(text="a", response_format=form(tree))
    assert result["json"] == deep
