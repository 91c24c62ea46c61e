"""The task `chat`: text, conversations, tool calls and JSON answers."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.worker.features.model.errors import ModelRefused
from sluice.worker.features.model.types import Completion, Usage
from tests.support.worker.model_tasks import Hang, MakeScripted, calls, joined, says

pytestmark = pytest.mark.fakeredis_only

TASK = "chat"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
EVA = {"name": "Eva", "age": 7}
EVA_JSON = '{"name": "Eva", "age": 7}'


def form(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


async def test_a_text_is_answered(scripted: MakeScripted) -> None:
    worker = scripted("Hello there, how are you today?")
    result, events = await worker.run(text="hi")
    assert isinstance(result.pop("ms"), int)
    assert result == {
        "text": "Hello there, how are you today?",
        "finish_reason": "stop",
        "usage": Usage(7, 6).view(),
        "first_token_ms": 5,
        "tokens_per_s": 20.0,
        "model": "scripted",
    }
    assert joined(events, "worker.chat") == result["text"]
    assert events[2][2] == {"delta": "Hello", "n": 1, "attempt": 1}
    [(type, _, usage), (end, _, _)] = events[-2:]
    assert (type, usage["total_tokens"], usage["attempt"], end) == ("usage", 13, 1, "done")
    assert worker.model.requests[0].messages == [{"role": "user", "content": "hi"}]


async def test_a_conversation_and_every_parameter_reach_the_model(scripted: MakeScripted) -> None:
    worker = scripted("ok")
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    function = {"name": "f", "parameters": {"type": "object"}, "strict": False}
    await worker.run(
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
    [request] = worker.model.requests
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


async def test_tool_calls_are_returned(scripted: MakeScripted) -> None:
    worker = scripted(calls(("f", '{"a":1}')))
    tool = {"type": "function", "function": {"name": "f"}}
    result, _ = await worker.run(text="a", tools=[tool], response_format=form(PERSON))
    assert result["finish_reason"] == "tool_calls"
    assert result["tool_calls"] == [
        {"id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    ]
    assert "json" not in result


async def test_reasoning_and_surrogates_are_valid_json(scripted: MakeScripted) -> None:
    said = Completion("so \ud83d\ude00 \ud83d", "stop", "scripted", Usage(), "hm \ud83d")
    result, events = await scripted(said).run(text="a")
    assert (result["text"], result["reasoning"]) == ("so 😀 �", "hm �")
    assert joined(events, "worker.chat") == result["text"]


async def test_a_canceled_job_keeps_its_partial_answer(scripted: MakeScripted) -> None:
    kept = await scripted(Hang("Once upon a")).cancel_in_the_middle(
        text="a tale", response_format=form(PERSON)
    )
    assert (kept["text"], kept["finish_reason"]) == ("Once upon a", "canceled")
    assert kept["usage"]["completion_tokens"] == 3
    assert "json" not in kept


# -- JSON -----------------------------------------------------------------------------------------


async def test_json_is_found_wherever_it_stands(scripted: MakeScripted) -> None:
    for answer in (
        EVA_JSON,
        f"Here [1] you are:\n```\n{EVA_JSON}\n```\nGood luck!",
        f'<think>{{"name": 1}}?</think>\n{EVA_JSON}',
    ):
        worker = scripted(answer)
        result, _ = await worker.run(text="who?", response_format=form(PERSON, strict=True))
        assert (result["json"], result["text"]) == (EVA, answer)
        assert worker.model.requests[0].response_format == form(PERSON, strict=True)


async def test_an_invalid_answer_is_requested_again(scripted: MakeScripted) -> None:
    worker = scripted('{"name": "Eva", "age": -1}', EVA_JSON)
    result, events = await worker.run(text="who?", response_format=form(PERSON))
    assert result["json"] == EVA
    assert result["text"] == joined(events, "worker.chat")
    assert result["usage"] == Usage(14, 8).view()
    again = worker.model.requests[1]
    assert again.messages[-2] == {"role": "assistant", "content": '{"name": "Eva", "age": -1}'}
    assert 'at "/age": -1 is less than the minimum' in worker.model.last_message(1)
    assert '"additionalProperties":false' in worker.model.last_message(1)
    assert [type for type, _, _ in events].count("usage") == 1


async def test_if_the_format_is_refused_it_goes_into_the_prompt(scripted: MakeScripted) -> None:
    worker = scripted(ModelRefused("no grammars here", 400), "Eva is seven.", EVA_JSON)
    result, events = await worker.run(text="who?", system="be brief", response_format=form(PERSON))
    assert result["json"] == EVA
    _, plain, again = worker.model.requests
    assert plain.response_format is again.response_format is None
    assert plain.messages[0]["role"] == "system"
    assert plain.messages[0]["content"].startswith("be brief\n\nAnswer with JSON")
    assert joined(events, "worker.chat") == result["text"]


REFUSED, INVALID = "model_refused", "model_answer_invalid"
UNUSABLE = ["I do not know", '{"name": "Eva"}']
FAILURES: list[tuple[list[Any], dict[str, Any], str, list[str]]] = [
    ([], {"model": "gpt-5"}, REFUSED, ["'gpt-5'", "'scripted'"]),
    ([ModelRefused("too long", 400), ModelRefused("again", 400)], {}, REFUSED, ["too long"]),
    ([ModelRefused("who are you?", 401)], {}, REFUSED, ["who are you?"]),
    (UNUSABLE, {}, INVALID, ["'age' is a required property", '{"name": "Eva"}']),
    ([says("[1, 2, 3", "length")], {}, INVALID, ["cut off after 3 tokens: raise max_tokens"]),
]


async def test_an_answer_that_is_refused_or_invalid_fails_the_job(scripted: MakeScripted) -> None:
    for lines, options, kind, messages in FAILURES:
        worker = scripted(*lines)
        error = await worker.fail(text="who?", response_format=form(PERSON), **options)
        assert error["kind"] == kind
        assert all(message in error["message"] for message in messages), error["message"]
        assert len(worker.model.requests) == len(lines)


async def test_an_object_without_a_schema(scripted: MakeScripted) -> None:
    worker = scripted("[1, 2]", '{"a": [1, 2, 18446744073709551616]}')
    result, _ = await worker.run(text="a", response_format={"type": "json_object"})
    assert result["json"] == {"a": [1, 2, 18446744073709551616]}
    assert "not a JSON object" in worker.model.last_message(1)


async def test_null_and_recursive_schemas_are_fine(scripted: MakeScripted) -> None:
    result, _ = await scripted("null").run(text="a", response_format=form({"type": "null"}))
    assert result["json"] is None
    tree = {"properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
    deep: Any = {}
    for _ in range(30):
        deep = {"kids": [deep]}
    answer = str(deep).replace("'", '"')
    result, _ = await scripted(answer).run(text="a", response_format=form(tree))
    assert result["json"] == deep


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"type": "objekt"}, "objekt"),
    ({"$ref": "http://127.0.0.1:9/schema.json"}, "127.0.0.1:9"),
    ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "passwd"),
    ({"properties": {"a": {"$ref": "#/$defs/a"}}}, "#/$defs/a"),
    ({"$ref": "#"}, "endless cycle"),
    ({"pattern": "("}, "regex"),
]


async def test_a_hostile_schema_is_refused_at_once(scripted: MakeScripted) -> None:
    worker = scripted()
    for schema, named in HOSTILE:
        error = await worker.fail(text="a", response_format=form(schema))
        assert (error["kind"], worker.model.requests) == ("invalid_payload", [])
        assert "response_format.json_schema.schema: " in error["message"]
        assert named in error["message"]


#: Each level doubles the number of ways.
MANY_WAYS = {
    "$ref": "#/$defs/0",
    "$defs": {
        **{str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(40)},
        "40": True,
    },
}


@pytest.mark.slow("each check takes two seconds of CPU time")
@pytest.mark.parametrize("schema", [MANY_WAYS, {"type": "string", "pattern": "^(a+)+$"}])
async def test_an_endless_check_does_not_block_the_worker(
    scripted: MakeScripted, schema: dict[str, Any]
) -> None:
    worker = scripted('"' + "a" * 64 + '!"', '"aaa"')
    error = await worker.fail(text="a", response_format=form(schema))
    assert error["kind"] == "invalid_payload"
    assert "more than 2 s" in error["message"]
    outcome, _ = await worker.harness.execute(b'{"text":"a"}')  # still running
    assert outcome.value == "done"
