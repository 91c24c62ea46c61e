"""The agent loop: rounds and calls, repair, repetition, limits and events."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.worker.features.agent.kit import Bench, answer, calls, events, hang, says
from tests.worker.kit import Rig, RigMaker
from worker.execution.executor import Outcome
from worker.features.agent.types import AgentLimits
from worker.features.model.types import Completion
from worker.features.tools.errors import ToolUnavailable

TWICE = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


async def run(rig: RigMaker, bench: Bench) -> tuple[Rig, str, dict[str, Any]]:
    worker = rig(registry=bench.registry)
    outcome, job_id = await worker.execute()
    assert outcome is Outcome.DONE, await worker.job(job_id)
    return worker, job_id, await answer(worker, job_id)


async def test_a_question_two_calls_and_an_answer(rig: RigMaker) -> None:
    bench = Bench(
        calls(("calculator", {"expression": "6*7"}), ("effect", {"a": 1}), text="Let me see."),
        says("It is 42."),
        names=["calculator", "effect"],
    )
    worker, job_id, result = await run(rig, bench)
    assert (result["text"], result["finish_reason"]) == ("It is 42.", "stop")
    assert result["usage"]["total_tokens"] == 30
    assert result["rounds"] == 2
    first, second = bench.model.asked
    assert [tool["function"]["name"] for tool in first.tools or []] == ["calculator", "effect"]
    assert first.messages == [{"role": "user", "content": "How many?"}]
    assert second.messages[1:] == [
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {
                    "id": "c0",
                    "type": "function",
                    "function": {"name": "calculator", "arguments": '{"expression": "6*7"}'},
                },
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "effect", "arguments": '{"a": 1}'},
                },
            ],
        },
        {
            "role": "tool",
            "tool_call_id": "c0",
            "name": "calculator",
            "content": '{"value":42}',
        },
        {"role": "tool", "tool_call_id": "c1", "name": "effect", "content": "effect done"},
    ]
    story = [
        (kind, data.get("id"), data.get("round"))
        for kind, _, data in await worker.parsed_events(job_id)
        if kind.startswith("tool_")
    ]
    assert story == [
        ("tool_call", "c0", 1),
        ("tool_result", "c0", 1),
        ("tool_call", "c1", 1),
        ("tool_result", "c1", 1),
    ]
    called, came, *_ = await events(worker, job_id, "tool_call", "tool_result")
    assert called == {
        "id": "c0",
        "name": "calculator",
        "arguments": {"expression": "6*7"},
        "round": 1,
        "attempt": 1,
    }
    assert came["output"] == {"value": 42}
    assert [step["name"] for step in result["steps"]] == ["calculator", "effect"]
    assert result["steps"][1]["output"] == "effect done"
    assert bench.calls == [f"{job_id}:agent.1.1"]


async def test_text_streams_with_its_round(fake_rig: RigMaker) -> None:
    bench = Bench(calls(("effect", {}), text="Let me see."), says("One two three."))
    worker, job_id, result = await run(fake_rig, bench)
    heard: dict[int, str] = {}
    for data in await events(worker, job_id, "message"):
        heard[data.get("round", 1)] = heard.get(data.get("round", 1), "") + data["delta"]
    assert heard == {1: "Let me see.", 2: "One two three."}
    assert result["text"] == "One two three."


async def test_a_tool_with_a_dot_in_its_name(fake_rig: RigMaker) -> None:
    bench = Bench(calls(("files__read", {})), calls(("files.read", {"a": 1})), says("ok"))
    bench.add("files.read")
    bench.names = ["files.read"]
    _, _, result = await run(fake_rig, bench)
    assert [step["name"] for step in result["steps"]] == ["files.read"] * 2
    [offered] = bench.model.asked[0].tools or []
    assert offered["function"]["name"] == "files__read"


async def test_unknown_tools_fail_the_job_before_the_model_is_asked(
    fake_rig: RigMaker,
) -> None:
    bench = Bench(names=["calculator", "hammer"])
    worker = fake_rig(registry=bench.registry)
    _, job_id = await worker.execute()
    assert (await worker.error(job_id))["kind"] == "unknown_tool"
    assert bench.model.asked == []


# -- arguments ------------------------------------------------------------------------------------


async def test_the_model_can_correct_invalid_arguments(fake_rig: RigMaker) -> None:
    bench = Bench(calls(("twice", {"n": "two"})), calls(("twice", {"n": 2})), says("4"))
    bench.add("twice", parameters=TWICE)
    bench.names = ["twice"]
    worker, job_id, result = await run(fake_rig, bench)
    assert bench.arguments == [{"n": 2}]
    reported = bench.model.asked[1].messages[-1]["content"]
    assert 'at "/n"' in reported
    assert reported.endswith("Correct the arguments and call it again.")
    [wrong, _] = await events(worker, job_id, "tool_result")
    assert wrong["error"]["kind"] == "tool_arguments_invalid"
    assert result["text"] == "4"


#: It can be decoded but not encoded.
DEEP = '{"a":' * 300 + "1" + "}" * 300


@pytest.mark.parametrize("arguments", ["{", "[1]", "5", '"x"', "null", "nonsense", DEEP])
async def test_arguments_must_be_an_object(fake_rig: RigMaker, arguments: str) -> None:
    bench = Bench(calls(("effect", arguments)), says("ok"))
    await run(fake_rig, bench)
    assert bench.calls == []
    assert "not a JSON object" in bench.model.asked[1].messages[-1]["content"]


async def test_arguments_written_as_json_in_json(fake_rig: RigMaker) -> None:
    bench = Bench(calls(("effect", json.dumps('{"a": 1}'))), says("ok"))
    await run(fake_rig, bench)
    assert bench.arguments == [{"a": 1}]


async def test_no_arguments_at_all_are_an_empty_object(fake_rig: RigMaker) -> None:
    bench = Bench(calls(("effect", "")), says("ok"))
    await run(fake_rig, bench)
    assert bench.arguments == [{}]


async def test_a_tool_that_is_called_wrongly_twice_is_withdrawn(fake_rig: RigMaker) -> None:
    bench = Bench(
        calls(("twice", {"n": "a"})),
        calls(("twice", {"n": "b"})),
        calls(("twice", {"n": 1})),
        says("without it"),
        names=["twice", "effect"],
    )
    bench.add("twice", parameters=TWICE)
    _, _, result = await run(fake_rig, bench)
    assert result["text"] == "without it"
    assert bench.calls == []
    asked = bench.model.asked
    assert asked[2].messages[-1]["content"].endswith("do without it.")
    assert [tool["function"]["name"] for tool in asked[2].tools or []] == ["effect"]
    assert "there are: effect" in asked[3].messages[-1]["content"]


async def test_a_repaired_tool_may_be_wrong_once_more(fake_rig: RigMaker) -> None:
    turns = [calls(("twice", {"n": n})) for n in ("a", 1, "b", 2)]
    bench = Bench(*turns, says("ok"), names=["twice"])
    bench.add("twice", parameters=TWICE)
    await run(fake_rig, bench)
    assert bench.arguments == [{"n": 1}, {"n": 2}]


async def test_without_any_tool_left_the_model_may_not_call(fake_rig: RigMaker) -> None:
    bench = Bench(calls(("twice", "{")), calls(("twice", "[")), says("ok"), names=["twice"])
    bench.add("twice", parameters=TWICE)
    await run(fake_rig, bench)
    assert [request.tool_choice for request in bench.model.asked] == [None, None, "none"]


async def test_the_model_is_informed_about_an_unknown_tool(fake_rig: RigMaker) -> None:
    bench = Bench(calls(("hammer", {})), calls(("calculator", {"expression": "1"})), says("ok"))
    await run(fake_rig, bench)
    for request in bench.model.asked[1:]:  # it exists, but was not offered
        reported = request.messages[-1]["content"]
        assert "unknown_tool" in reported
        assert reported.endswith("there are: effect")


async def test_arguments_that_are_too_long_are_refused(fake_rig: RigMaker) -> None:
    long = {"text": "\x00" * 20_000}
    bench = Bench(calls(("effect", long), ("effect", {"a": 1}), text="x" * 100_000), says("ok"))
    _, _, result = await run(fake_rig, bench)
    assert bench.arguments == [{"a": 1}]
    assert result["steps"][0]["error"]["kind"] == "tool_arguments_invalid"
    history = bench.model.asked[1].messages[1]
    assert history["tool_calls"][0]["function"]["arguments"] == "{}"
    assert len(history["content"]) < 13_000


async def test_odd_ids_are_made_usable(fake_rig: RigMaker) -> None:
    wanted = calls(("effect", {"a": 1}), ("effect", {"a": 2}), ("effect", {"a": 3}))
    broken = [
        type(call)(id, call.name, call.arguments)
        for call, id in zip(wanted.tool_calls, ["", "x", "x"])
    ]
    bench = Bench(Completion("", "tool_calls", "m", tool_calls=tuple(broken)), says("ok"))
    _, _, result = await run(fake_rig, bench)
    ids = [step["id"] for step in result["steps"]]
    assert len(set(ids)) == 3
    assert all(ids)


# -- tools that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"), [(ValueError("no"), "tool_failed"), (ToolUnavailable("gone"), None)]
)
async def test_the_model_is_informed_about_a_failure(
    fake_rig: RigMaker, error: Exception, kind: str | None
) -> None:
    async def fails(call: Any, arguments: Any) -> Any:
        raise error

    bench = Bench(calls(("fails", {})), says("never mind"), names=["fails"])
    bench.add("fails", fails)
    _, _, result = await run(fake_rig, bench)
    assert result["text"] == "never mind"
    assert result["steps"][0]["error"]["kind"] == (kind or "tool_unavailable")
    assert str(error) in bench.model.asked[1].messages[-1]["content"]


@pytest.mark.parametrize(
    ("repeatable", "kinds"),
    [(True, ["tool_timeout"] * 2), (False, ["tool_timeout", "tool_call_repeated"])],
)
async def test_the_model_is_informed_about_a_timeout(
    fake_rig: RigMaker, repeatable: bool, kinds: list[str]
) -> None:
    """After a timeout the same call is allowed again only if repeating it is safe."""

    async def slow(call: Any, arguments: Any) -> Any:
        await asyncio.sleep(60)

    bench = Bench(calls(("slow", {})), calls(("slow", {})), says("never mind"), names=["slow"])
    bench.add("slow", slow, timeout_s=0.05, repeatable=repeatable)
    _, _, result = await run(fake_rig, bench)
    assert [step["error"]["kind"] for step in result["steps"]] == kinds
    assert len(bench.calls) == kinds.count("tool_timeout")


async def test_long_outputs_are_cut(fake_rig: RigMaker) -> None:
    async def chatty(call: Any, arguments: Any) -> Any:
        return "\x01" * 200_000

    bench = Bench(calls(("chatty", {})), says("ok"), names=["chatty"])
    bench.add("chatty", chatty, output_bytes=200_000)
    _, _, result = await run(fake_rig, bench)
    assert result["steps"][0]["truncated"]
    assert len(json.dumps(result["steps"][0]["output"])) < 60 * 1024


# -- loops and limits -----------------------------------------------------------------------------


async def test_a_repeated_call_is_warned_about_once_then_ends_the_run(fake_rig: RigMaker) -> None:
    same = calls(("effect", {"b": 1, "a": 2}))
    turned = calls(("effect", '{"a":2,  "b":1}'))
    bench = Bench(same, turned, same, says("never"))
    _, _, result = await run(fake_rig, bench)
    assert result["finish_reason"] == "tool_loop"
    assert len(bench.calls) == 1
    assert "made before" in bench.model.asked[2].messages[-1]["content"]
    assert [step.get("error", {}).get("kind") for step in result["steps"]] == [
        None,
        "tool_call_repeated",
    ]
    assert len(bench.model.asked) == 3


async def test_a_model_that_takes_the_hint_goes_on(fake_rig: RigMaker) -> None:
    bench = Bench(
        calls(("effect", {})), calls(("effect", {})), calls(("effect", {"a": 1})), says("good")
    )
    _, _, result = await run(fake_rig, bench)
    assert (result["text"], result["finish_reason"]) == ("good", "stop")
    assert len(bench.calls) == 2


async def test_rounds_are_limited(fake_rig: RigMaker) -> None:
    turns = [calls(("effect", {"n": n}), text=f"Round {n}.") for n in range(5)]
    bench = Bench(*turns, limits=AgentLimits(rounds=3))
    _, _, result = await run(fake_rig, bench)
    assert result["finish_reason"] == "max_rounds"
    assert result["text"] == "Round 2."
    assert bench.arguments == [{"n": 0}, {"n": 1}]  # the result of a third could not be used
    assert [request.tool_choice for request in bench.model.asked] == [None, None, "none"]


async def test_an_answer_in_the_last_round_is_an_answer(fake_rig: RigMaker) -> None:
    bench = Bench(calls(("effect", {})), says("there"), limits=AgentLimits(rounds=2))
    _, _, result = await run(fake_rig, bench)
    assert (result["text"], result["finish_reason"]) == ("there", "stop")


async def test_after_the_limit_of_calls_the_model_still_answers(
    fake_rig: RigMaker,
) -> None:
    many = calls(*[("effect", {"n": n}) for n in range(5)])
    bench = Bench(many, says("with what I have"), limits=AgentLimits(calls=3))
    _, _, result = await run(fake_rig, bench)
    assert (result["text"], result["finish_reason"]) == ("with what I have", "max_calls")
    assert len(bench.calls) == 3
    assert [step.get("error", {}).get("kind") for step in result["steps"]] == [None] * 3 + [
        "too_many_tool_calls"
    ] * 2
    assert bench.model.asked[1].tool_choice == "none"


async def test_a_model_that_ignores_the_limit_is_stopped(fake_rig: RigMaker) -> None:
    turns = [calls(("effect", {"n": n})) for n in range(5)]
    bench = Bench(*turns, limits=AgentLimits(calls=2))
    _, _, result = await run(fake_rig, bench)
    assert result["finish_reason"] == "max_calls"
    assert len(bench.calls) == 2


async def test_time_is_limited_while_the_model_talks(fake_rig: RigMaker) -> None:
    bench = Bench(calls(("effect", {})), hang, limits=AgentLimits(seconds=0.3))
    _, _, result = await run(fake_rig, bench)
    assert (result["text"], result["finish_reason"]) == ("so far", "max_time")
    assert len(result["steps"]) == 1


async def test_time_is_limited_while_a_tool_works(fake_rig: RigMaker) -> None:
    async def slow(call: Any, arguments: Any) -> Any:
        await asyncio.sleep(60)

    bench = Bench(calls(("slow", {})), names=["slow"], limits=AgentLimits(seconds=0.3))
    bench.add("slow", slow, timeout_s=60)
    began = time.monotonic()
    _, _, result = await run(fake_rig, bench)
    assert result["finish_reason"] == "max_time"
    assert time.monotonic() - began < 30  # half of the tool's duration
    assert result["steps"][0]["error"]["kind"] == "tool_timeout"


async def test_the_timeout_of_the_attempt_applies_too(fake_rig: RigMaker) -> None:
    bench = Bench(hang)
    bench.registry.add("chat", bench.chat, timeout_s=1.0)
    _, _, result = await run(fake_rig, bench)
    assert (result["text"], result["finish_reason"]) == ("so far", "max_time")


@pytest.mark.parametrize("wanted", ["required", {"type": "function", "function": {"name": "x.y"}}])
async def test_a_forced_call_is_forced_once(fake_rig: RigMaker, wanted: Any) -> None:
    bench = Bench(calls(("effect", {})), says("ok"), names=["effect", "x.y"])
    bench.add("x.y")
    bench.ask_for(tool_choice=wanted)
    await run(fake_rig, bench)
    first, second = (request.tool_choice for request in bench.model.asked)
    assert second == "auto"
    if isinstance(wanted, dict):
        assert first == {"type": "function", "function": {"name": "x__y"}}
