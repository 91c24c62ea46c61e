"""The agent loop: rounds and calls, repair, repetition, limits and events."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.support.worker.agent import AgentHarness, answer, calls, events, hang, says
from tests.support.worker.harness import MakeWorker, WorkerHarness
from worker.execution.executor import Outcome
from worker.features.agent.answer import ToolCallSink
from worker.features.agent.types import AgentLimits
from worker.features.model.types import Completion, NullSink
from worker.features.tools.errors import ToolUnavailable

TWICE = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


async def run(
    make_worker: MakeWorker, agent: AgentHarness
) -> tuple[WorkerHarness, str, dict[str, Any]]:
    worker = make_worker(registry=agent.registry)
    outcome, job_id = await worker.execute()
    assert outcome is Outcome.DONE, await worker.job(job_id)
    return worker, job_id, await answer(worker, job_id)


async def test_a_question_two_calls_and_an_answer(make_worker: MakeWorker) -> None:
    agent = AgentHarness(
        calls(("calculator", {"expression": "6*7"}), ("effect", {"a": 1}), text="Let me see."),
        says("It is 42."),
        names=["calculator", "effect"],
    )
    worker, job_id, result = await run(make_worker, agent)
    assert (result["text"], result["finish_reason"]) == ("It is 42.", "stop")
    assert (result["usage"]["total_tokens"], result["rounds"]) == (30, 2)
    first, second = agent.model.asked
    assert [tool["function"]["name"] for tool in first.tools or []] == ["calculator", "effect"]
    assert first.messages == [{"role": "user", "content": "How many?"}]
    wanted = [
        {"id": "c0", "type": "function",
         "function": {"name": "calculator", "arguments": '{"expression": "6*7"}'}},
        {"id": "c1", "type": "function",
         "function": {"name": "effect", "arguments": '{"a": 1}'}},
    ]  # fmt: skip
    assert second.messages[1:] == [
        {"role": "assistant", "content": "Let me see.", "tool_calls": wanted},
        {"role": "tool", "tool_call_id": "c0", "name": "calculator", "content": '{"value":42}'},
        {"role": "tool", "tool_call_id": "c1", "name": "effect", "content": "effect done"},
    ]
    reported = [
        (kind, data.get("id"), data.get("round"))
        for kind, _, data in await worker.parsed_events(job_id)
        if kind.startswith("tool_")
    ]
    pairs = [("tool_call", "c0", 1), ("tool_result", "c0", 1)]
    assert reported == [*pairs, ("tool_call", "c1", 1), ("tool_result", "c1", 1)]
    called, came, *_ = await events(worker, job_id, "tool_call", "tool_result")
    about = {"id": "c0", "name": "calculator", "round": 1, "attempt": 1}
    assert called == {**about, "arguments": {"expression": "6*7"}}
    assert came["output"] == {"value": 42}
    assert [step["name"] for step in result["steps"]] == ["calculator", "effect"]
    assert result["steps"][1]["output"] == "effect done"
    assert agent.calls == [f"{job_id}:agent.1.1"]
    text: dict[int, str] = {}
    for data in await events(worker, job_id, "message"):
        text[data.get("round", 1)] = text.get(data.get("round", 1), "") + data["delta"]
    assert text == {1: "Let me see.", 2: "It is 42."}


@pytest.mark.fakeredis_only
async def test_a_tool_with_a_dot_in_its_name(make_worker: MakeWorker) -> None:
    agent = AgentHarness(calls(("files__read", {})), calls(("files.read", {"a": 1})), says("ok"))
    agent.add("files.read")
    agent.names = ["files.read"]
    _, _, result = await run(make_worker, agent)
    assert [step["name"] for step in result["steps"]] == ["files.read"] * 2
    [offered] = agent.model.asked[0].tools or []
    assert offered["function"]["name"] == "files__read"


@pytest.mark.fakeredis_only
async def test_unknown_tools_fail_the_job_before_any_request(
    make_worker: MakeWorker,
) -> None:
    agent = AgentHarness(names=["calculator", "hammer"])
    worker = make_worker(registry=agent.registry)
    _, job_id = await worker.execute()
    assert (await worker.error(job_id))["kind"] == "unknown_tool"
    assert agent.model.asked == []


@pytest.mark.fakeredis_only
async def test_the_model_can_correct_invalid_arguments(make_worker: MakeWorker) -> None:
    agent = AgentHarness(calls(("twice", {"n": "two"})), calls(("twice", {"n": 2})), says("4"))
    agent.add("twice", parameters=TWICE)
    agent.names = ["twice"]
    worker, job_id, result = await run(make_worker, agent)
    assert agent.arguments == [{"n": 2}]
    reported = agent.model.asked[1].messages[-1]["content"]
    assert 'at "/n"' in reported
    assert reported.endswith("Correct the arguments and call it again.")
    [wrong, _] = await events(worker, job_id, "tool_result")
    assert wrong["error"]["kind"] == "tool_arguments_invalid"
    assert result["text"] == "4"


#: It can be decoded but not encoded.
DEEP = '{"a":' * 300 + "1" + "}" * 300


@pytest.mark.fakeredis_only
async def test_arguments_must_be_an_object(make_worker: MakeWorker) -> None:
    for arguments in ("{", "[1]", "5", '"x"', "null", "nonsense", DEEP):
        agent = AgentHarness(calls(("effect", arguments)), says("ok"))
        await run(make_worker, agent)
        assert agent.calls == []
        assert "not a JSON object" in agent.model.asked[1].messages[-1]["content"]
    # Or JSON in JSON, or nothing.
    for arguments, read in ((json.dumps('{"a": 1}'), {"a": 1}), ("", {})):
        agent = AgentHarness(calls(("effect", arguments)), says("ok"))
        await run(make_worker, agent)
        assert agent.arguments == [read]


@pytest.mark.fakeredis_only
async def test_a_tool_that_is_called_wrongly_twice_is_withdrawn(make_worker: MakeWorker) -> None:
    agent = AgentHarness(
        calls(("twice", {"n": "a"})),
        calls(("twice", {"n": "b"})),
        calls(("twice", {"n": 1})),
        says("without it"),
        names=["twice", "effect"],
    )
    agent.add("twice", parameters=TWICE)
    _, _, result = await run(make_worker, agent)
    assert result["text"] == "without it"
    assert agent.calls == []
    asked = agent.model.asked
    assert asked[2].messages[-1]["content"].endswith("do without it.")
    assert [tool["function"]["name"] for tool in asked[2].tools or []] == ["effect"]
    assert "there are: effect" in asked[3].messages[-1]["content"]
    # A repaired tool may be wrong once more.
    turns = [calls(("twice", {"n": n})) for n in ("a", 1, "b", 2)]
    agent = AgentHarness(*turns, says("ok"), names=["twice"])
    agent.add("twice", parameters=TWICE)
    await run(make_worker, agent)
    assert agent.arguments == [{"n": 1}, {"n": 2}]
    # Without any tool left the model may not call.
    turns = [calls(("twice", wrong)) for wrong in ("{", "[")]
    agent = AgentHarness(*turns, says("ok"), names=["twice"])
    agent.add("twice", parameters=TWICE)
    await run(make_worker, agent)
    assert [request.tool_choice for request in agent.model.asked] == [None, None, "none"]


@pytest.mark.fakeredis_only
async def test_the_model_is_informed_about_an_unknown_tool(make_worker: MakeWorker) -> None:
    agent = AgentHarness(
        calls(("hammer", {})), calls(("calculator", {"expression": "1"})), says("ok")
    )
    await run(make_worker, agent)
    for request in agent.model.asked[1:]:  # it exists, but was not offered
        reported = request.messages[-1]["content"]
        assert "unknown_tool" in reported
        assert reported.endswith("there are: effect")


@pytest.mark.fakeredis_only
async def test_arguments_that_are_too_long_are_refused(make_worker: MakeWorker) -> None:
    long = {"text": "\x00" * 20_000}
    agent = AgentHarness(
        calls(("effect", long), ("effect", {"a": 1}), text="x" * 100_000), says("ok")
    )
    _, _, result = await run(make_worker, agent)
    assert agent.arguments == [{"a": 1}]
    assert result["steps"][0]["error"]["kind"] == "tool_arguments_invalid"
    history = agent.model.asked[1].messages[1]
    assert history["tool_calls"][0]["function"]["arguments"] == "{}"
    assert len(history["content"]) < 13_000


@pytest.mark.fakeredis_only
async def test_odd_ids_are_made_usable(make_worker: MakeWorker) -> None:
    wanted = calls(("effect", {"a": 1}), ("effect", {"a": 2}), ("effect", {"a": 3}))
    broken = [
        type(call)(id, call.name, call.arguments)
        for call, id in zip(wanted.tool_calls, ["", "x", "x"])
    ]
    agent = AgentHarness(Completion("", "tool_calls", "m", tool_calls=tuple(broken)), says("ok"))
    _, _, result = await run(make_worker, agent)
    ids = [step["id"] for step in result["steps"]]
    assert len(set(ids)) == 3
    assert all(ids)


@pytest.mark.fakeredis_only
@pytest.mark.parametrize(
    ("error", "kind"), [(ValueError("no"), "tool_failed"), (ToolUnavailable("gone"), None)]
)
async def test_the_model_is_informed_about_a_failure(
    make_worker: MakeWorker, error: Exception, kind: str | None
) -> None:
    async def fails(call: Any, arguments: Any) -> Any:
        raise error

    agent = AgentHarness(calls(("fails", {})), says("never mind"), names=["fails"])
    agent.add("fails", fails)
    _, _, result = await run(make_worker, agent)
    assert result["text"] == "never mind"
    assert result["steps"][0]["error"]["kind"] == (kind or "tool_unavailable")
    assert str(error) in agent.model.asked[1].messages[-1]["content"]


@pytest.mark.fakeredis_only
@pytest.mark.parametrize(
    ("repeatable", "kinds"),
    [(True, ["tool_timeout"] * 2), (False, ["tool_timeout", "tool_call_repeated"])],
)
async def test_the_model_is_informed_about_a_timeout(
    make_worker: MakeWorker, repeatable: bool, kinds: list[str]
) -> None:
    """After a timeout the same call is allowed again only if repeating it is safe."""

    async def slow(call: Any, arguments: Any) -> Any:
        await asyncio.sleep(60)

    agent = AgentHarness(
        calls(("slow", {})), calls(("slow", {})), says("never mind"), names=["slow"]
    )
    agent.add("slow", slow, timeout_s=0.05, repeatable=repeatable)
    _, _, result = await run(make_worker, agent)
    assert [step["error"]["kind"] for step in result["steps"]] == kinds
    assert len(agent.calls) == kinds.count("tool_timeout")


@pytest.mark.fakeredis_only
async def test_long_outputs_are_cut(make_worker: MakeWorker) -> None:
    async def chatty(call: Any, arguments: Any) -> Any:
        return "\x01" * 200_000

    agent = AgentHarness(calls(("chatty", {})), says("ok"), names=["chatty"])
    agent.add("chatty", chatty, output_bytes=200_000)
    _, _, result = await run(make_worker, agent)
    assert result["steps"][0]["truncated"]
    assert len(json.dumps(result["steps"][0]["output"])) < 60 * 1024


@pytest.mark.fakeredis_only
async def test_a_repeated_call_is_warned_about_once(
    make_worker: MakeWorker,
) -> None:
    same = calls(("effect", {"b": 1, "a": 2}))
    turned = calls(("effect", '{"a":2,  "b":1}'))
    agent = AgentHarness(same, turned, same, says("never"))
    _, _, result = await run(make_worker, agent)
    assert result["finish_reason"] == "tool_loop"
    assert len(agent.calls) == 1
    assert "made before" in agent.model.asked[2].messages[-1]["content"]
    kinds = [step.get("error", {}).get("kind") for step in result["steps"]]
    assert kinds == [None, "tool_call_repeated"]
    assert len(agent.model.asked) == 3
    # A model that takes the hint continues.
    agent = AgentHarness(same, same, calls(("effect", {"a": 1})), says("good"))
    _, _, result = await run(make_worker, agent)
    assert (result["text"], result["finish_reason"]) == ("good", "stop")
    assert len(agent.calls) == 2


@pytest.mark.fakeredis_only
async def test_rounds_are_limited(make_worker: MakeWorker) -> None:
    turns = [calls(("effect", {"n": n}), text=f"Round {n}.") for n in range(5)]
    agent = AgentHarness(*turns, limits=AgentLimits(rounds=3))
    _, _, result = await run(make_worker, agent)
    assert (result["text"], result["finish_reason"]) == ("Round 2.", "max_rounds")
    assert agent.arguments == [{"n": 0}, {"n": 1}]  # the result of a third could not be used
    assert [request.tool_choice for request in agent.model.asked] == [None, None, "none"]
    agent = AgentHarness(calls(("effect", {})), says("there"), limits=AgentLimits(rounds=2))
    _, _, result = await run(make_worker, agent)
    assert (result["text"], result["finish_reason"]) == ("there", "stop")


@pytest.mark.fakeredis_only
async def test_after_the_limit_of_calls_the_model_still_answers(make_worker: MakeWorker) -> None:
    many = calls(*[("effect", {"n": n}) for n in range(5)])
    agent = AgentHarness(many, says("with what I have"), limits=AgentLimits(calls=3))
    _, _, result = await run(make_worker, agent)
    assert (result["text"], result["finish_reason"]) == ("with what I have", "max_calls")
    assert len(agent.calls) == 3
    kinds = [step.get("error", {}).get("kind") for step in result["steps"]]
    assert kinds == [None] * 3 + ["too_many_tool_calls"] * 2
    assert agent.model.asked[1].tool_choice == "none"
    # A model that ignores the limit is stopped.
    turns = [calls(("effect", {"n": n})) for n in range(5)]
    agent = AgentHarness(*turns, limits=AgentLimits(calls=2))
    _, _, result = await run(make_worker, agent)
    assert result["finish_reason"] == "max_calls"
    assert len(agent.calls) == 2


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("limit", ["agent", "attempt"])
async def test_time_is_limited_while_the_model_talks(make_worker: MakeWorker, limit: str) -> None:
    limits = AgentLimits(seconds=0.3) if limit == "agent" else None
    agent = AgentHarness(calls(("effect", {})), hang, limits=limits)
    if limit == "attempt":
        agent.registry.add("chat", agent.chat, timeout_s=1.0)
    _, _, result = await run(make_worker, agent)
    assert (result["text"], result["finish_reason"]) == ("so far", "max_time")
    assert len(result["steps"]) == 1


@pytest.mark.fakeredis_only
async def test_time_is_limited_while_a_tool_works(make_worker: MakeWorker) -> None:
    async def slow(call: Any, arguments: Any) -> Any:
        await asyncio.sleep(60)

    agent = AgentHarness(calls(("slow", {})), names=["slow"], limits=AgentLimits(seconds=0.3))
    agent.add("slow", slow, timeout_s=60)
    began = time.monotonic()
    _, _, result = await run(make_worker, agent)
    assert result["finish_reason"] == "max_time"
    assert time.monotonic() - began < 30  # half of the tool's duration
    assert result["steps"][0]["error"]["kind"] == "tool_timeout"


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("wanted", ["required", {"type": "function", "function": {"name": "x.y"}}])
async def test_a_forced_call_is_forced_once(make_worker: MakeWorker, wanted: Any) -> None:
    agent = AgentHarness(calls(("effect", {})), says("ok"), names=["effect", "x.y"])
    agent.add("x.y")
    agent.ask_for(tool_choice=wanted)
    await run(make_worker, agent)
    first, second = (request.tool_choice for request in agent.model.asked)
    assert second == "auto"
    if isinstance(wanted, dict):
        assert first == {"type": "function", "function": {"name": "x__y"}}


CALL = '<tool_call>\n{"name": "effect", "arguments": {"a": [1, "}"]}}\n</tool_call>'


class TextSink(NullSink):
    def __init__(self) -> None:
        self.heard: list[str] = []

    async def text(self, delta: str) -> None:
        self.heard.append(delta)


async def listen(text: str, size: int, names: Any = ("effect",)) -> tuple[str, list[Any]]:
    ear = TextSink()
    listening = ToolCallSink(ear, names)
    for start in range(0, len(text), size):
        await listening.text(text[start : start + size])
    found = await listening.end(2)
    assert "".join(ear.heard) == listening.emitted_text
    return listening.emitted_text, [
        (call.id, call.name, json.loads(call.arguments)) for call in found
    ]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_a_call_is_held_back_however_it_arrives(size: int) -> None:
    said, found = await listen(f"I look. {CALL}", size)
    assert said == "I look. "
    assert found == [("call_2_0", "effect", {"a": [1, "}"]})]
    other = '<tool_call>{"name":"effect","parameters":{}}'
    said, found = await listen(f"{CALL}\n{CALL}{other}", size)  # several, and a missing end
    assert said == ""
    assert [call[0] for call in found] == ["call_2_0", "call_2_1", "call_2_2"]
    assert found[2][2] == {}
    assert await listen(CALL, size, names=()) == (CALL, [])


@pytest.mark.parametrize(
    "text",
    ["a < b and <tool> or <tool_cal", "The tag is <tool_call> and nothing more",
     '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
     '<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": ["effect"]}</tool_call>',
     "<tool_call>[1]</tool_call>", "<tool_call>{broken</tool_call>", f"{CALL} and then some text",
     "<tool_call>" + "[" * 100_000, "plain", ""],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 1000])
async def test_text_that_is_not_a_call_is_forwarded(text: str, size: int) -> None:
    if len(text) > 1000 and size == 1:
        size = 997
    assert await listen(text, size) == (text, [])


@pytest.mark.fakeredis_only
async def test_the_agent_runs_calls_written_as_text(make_worker: MakeWorker) -> None:
    agent = AgentHarness(says(f"Let me see. {CALL}"), says("There."))
    worker = make_worker(registry=agent.registry)
    outcome, job_id = await worker.execute()
    assert outcome is Outcome.DONE
    assert (await answer(worker, job_id))["text"] == "There."
    assert agent.arguments == [{"a": [1, "}"]}]
    [_, call, result] = agent.model.asked[1].messages
    assert call["content"] == "Let me see. "
    assert call["tool_calls"][0]["function"]["name"] == "effect"
    assert result["tool_call_id"] == "call_1_0"
    deltas = [data["delta"] for data in await events(worker, job_id, "message")]
    assert "".join(deltas) == "Let me see. There."
