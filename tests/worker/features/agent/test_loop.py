"""The agent loop: rounds and calls, repair, repetition and limits."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from sluice.worker.features.agent.answer import ToolCallSink
from sluice.worker.features.agent.types import AgentLimits
from sluice.worker.features.tools.errors import ToolUnavailable
from tests.support.worker.harness import MakeWorker
from tests.support.worker.model import RecordingSink
from tests.support.worker.model_tasks import Hang, calls
from tests.support.worker.tools import AgentHarness, raising, returning, sleep_long
from tests.worker.features.agent.conftest import Run

pytestmark = pytest.mark.fakeredis_only

TWICE = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
EFFECT = calls(("effect", {}))
#: Different calls, so that none is a repetition.
EFFECTS = [calls(("effect", {"n": n}), text=f"Round {n}.") for n in range(5)]


def agent_with_twice(*lines: Any, more: tuple[str, ...] = ()) -> AgentHarness:
    """An agent with a tool that takes a number."""
    agent = AgentHarness(*lines, names=["twice", *more])
    agent.add("twice", parameters=TWICE)
    return agent


def offered(agent: AgentHarness, number: int) -> list[str]:
    """Names of the tools of a request."""
    return [tool["function"]["name"] for tool in agent.model.requests[number].tools or []]


def kinds_of_errors(result: dict[str, Any]) -> list[str | None]:
    return [step.get("error", {}).get("kind") for step in result["steps"]]


async def test_a_tool_with_a_dot_in_its_name(run: Run) -> None:
    lines = calls(("files__read", {})), calls(("files.read", {"a": 1})), "ok"
    agent = AgentHarness(*lines, names=["files.read"])
    agent.add("files.read")
    result, _ = await run(agent)
    assert [step["name"] for step in result["steps"]] == ["files.read"] * 2
    assert offered(agent, 0) == ["files__read"]


async def test_unknown_tools_fail_the_job_before_any_request(make_worker: MakeWorker) -> None:
    agent = AgentHarness(names=["calculator", "hammer"])
    worker = make_worker(registry=agent.registry)
    _, job_id = await worker.execute()
    assert (await worker.error(job_id))["kind"] == "unknown_tool"
    assert agent.model.requests == []


async def test_the_model_can_correct_invalid_arguments(run: Run) -> None:
    agent = agent_with_twice(calls(("twice", {"n": "two"})), calls(("twice", {"n": 2})), "4")
    result, events = await run(agent)
    assert agent.arguments == [{"n": 2}]
    reported = agent.model.last_message(1)
    assert 'at "/n"' in reported
    assert reported.endswith("Correct the arguments and call it again.")
    [wrong, _] = [data for kind, _, data in events if kind == "tool_result"]
    assert wrong["error"]["kind"] == "tool_arguments_invalid"
    assert result["text"] == "4"


#: It can be decoded but not encoded.
DEEP = '{"a":' * 300 + "1" + "}" * 300


async def test_arguments_must_be_an_object(run: Run) -> None:
    for arguments in ("{", "[1]", "5", '"x"', "null", "nonsense", DEEP):
        agent = AgentHarness(calls(("effect", arguments)), "ok")
        await run(agent)
        assert agent.calls == []
        assert "not a JSON object" in agent.model.last_message(1)
    # Or JSON in JSON, or nothing.
    for arguments, read in ((json.dumps('{"a": 1}'), {"a": 1}), ("", {})):
        agent = AgentHarness(calls(("effect", arguments)), "ok")
        await run(agent)
        assert agent.arguments == [read]


async def test_a_tool_that_is_called_wrongly_twice_is_withdrawn(run: Run) -> None:
    lines = [calls(("twice", {"n": n})) for n in ("a", "b", 1)]
    agent = agent_with_twice(*lines, "without it", more=("effect",))
    result, _ = await run(agent)
    assert result["text"] == "without it"
    assert agent.calls == []
    assert agent.model.last_message(2).endswith("do without it.")
    assert offered(agent, 2) == ["effect"]
    assert "there are: effect" in agent.model.last_message(3)
    # A repaired tool may be wrong once more.
    agent = agent_with_twice(*(calls(("twice", {"n": n})) for n in ("a", 1, "b", 2)), "ok")
    await run(agent)
    assert agent.arguments == [{"n": 1}, {"n": 2}]
    # Without any tool left the model may not call.
    agent = agent_with_twice(*(calls(("twice", wrong)) for wrong in ("{", "[")), "ok")
    await run(agent)
    assert [request.tool_choice for request in agent.model.requests] == [None, None, "none"]


async def test_the_model_is_informed_about_an_unknown_tool(run: Run) -> None:
    unknown, not_offered = calls(("hammer", {})), calls(("calculator", {"expression": "1"}))
    agent = AgentHarness(unknown, not_offered, "ok")
    await run(agent)
    for number in (1, 2):
        assert "unknown_tool" in agent.model.last_message(number)
        assert agent.model.last_message(number).endswith("there are: effect")


async def test_arguments_that_are_too_long_are_refused(run: Run) -> None:
    long = calls(("effect", {"text": "\x00" * 20_000}), ("effect", {"a": 1}), text="x" * 100_000)
    agent = AgentHarness(long, "ok")
    result, _ = await run(agent)
    assert agent.arguments == [{"a": 1}]
    assert kinds_of_errors(result) == ["tool_arguments_invalid", None]
    history = agent.model.requests[1].messages[1]
    assert history["tool_calls"][0]["function"]["arguments"] == "{}"
    assert len(history["content"]) < 13_000


async def test_odd_ids_are_made_usable(run: Run) -> None:
    wanted = calls(*(("effect", {"a": n}) for n in range(3)))
    odd = [replace(call, id=id) for call, id in zip(wanted.tool_calls, ["", "x", "x"])]
    result, _ = await run(AgentHarness(replace(wanted, tool_calls=tuple(odd)), "ok"))
    ids = [step["id"] for step in result["steps"]]
    assert len(set(ids)) == 3
    assert all(ids)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ValueError("no"), "tool_failed"), (ToolUnavailable("gone"), "tool_unavailable")],
)
async def test_the_model_is_informed_about_a_failure(run: Run, error: Exception, kind: str) -> None:
    agent = AgentHarness(calls(("fails", {})), "never mind", names=["fails"])
    agent.add("fails", raising(error))
    result, _ = await run(agent)
    assert result["text"] == "never mind"
    assert kinds_of_errors(result) == [kind]
    assert str(error) in agent.model.last_message(1)


@pytest.mark.parametrize(
    ("repeatable", "kinds"),
    [(True, ["tool_timeout"] * 2), (False, ["tool_timeout", "tool_call_repeated"])],
)
async def test_the_model_is_informed_about_a_timeout(
    run: Run, repeatable: bool, kinds: list[str]
) -> None:
    """After a timeout the same call is allowed again only if repeating it is safe."""
    agent = AgentHarness(*[calls(("slow", {}))] * 2, "never mind", names=["slow"])
    agent.add("slow", sleep_long, timeout_s=0.05, repeatable=repeatable)
    result, _ = await run(agent)
    assert kinds_of_errors(result) == kinds
    assert len(agent.calls) == kinds.count("tool_timeout")


async def test_long_outputs_are_cut(run: Run) -> None:
    agent = AgentHarness(calls(("chatty", {})), "ok", names=["chatty"])
    agent.add("chatty", returning("\x01" * 200_000), output_bytes=200_000)
    result, _ = await run(agent)
    assert result["steps"][0]["truncated"]
    assert len(json.dumps(result["steps"][0]["output"])) < 60 * 1024


async def test_a_repeated_call_is_warned_about_once(run: Run) -> None:
    same, turned = calls(("effect", {"b": 1, "a": 2})), calls(("effect", '{"a":2,  "b":1}'))
    agent = AgentHarness(same, turned, same, "never")
    result, _ = await run(agent)
    assert result["finish_reason"] == "tool_loop"
    assert len(agent.calls) == 1
    assert "made before" in agent.model.last_message(2)
    assert kinds_of_errors(result) == [None, "tool_call_repeated"]
    assert len(agent.model.requests) == 3
    # A model that takes the hint continues.
    agent = AgentHarness(same, same, EFFECT, "good")
    result, _ = await run(agent)
    assert (result["text"], result["finish_reason"]) == ("good", "stop")
    assert len(agent.calls) == 2


async def test_rounds_are_limited(run: Run) -> None:
    agent = AgentHarness(*EFFECTS, limits=AgentLimits(rounds=3))
    result, _ = await run(agent)
    assert (result["text"], result["finish_reason"]) == ("Round 2.", "max_rounds")
    assert agent.arguments == [{"n": 0}, {"n": 1}]  # the result of a third could not be used
    assert [request.tool_choice for request in agent.model.requests] == [None, None, "none"]
    result, _ = await run(AgentHarness(EFFECT, "there", limits=AgentLimits(rounds=2)))
    assert (result["text"], result["finish_reason"]) == ("there", "stop")


async def test_after_the_limit_of_calls_the_model_still_answers(run: Run) -> None:
    many = calls(*(("effect", {"n": n}) for n in range(5)))
    agent = AgentHarness(many, "with what I have", limits=AgentLimits(calls=3))
    result, _ = await run(agent)
    assert (result["text"], result["finish_reason"]) == ("with what I have", "max_calls")
    assert len(agent.calls) == 3
    assert kinds_of_errors(result) == [None] * 3 + ["too_many_tool_calls"] * 2
    assert agent.model.requests[1].tool_choice == "none"
    # A model that ignores the limit is stopped.
    agent = AgentHarness(*EFFECTS, limits=AgentLimits(calls=2))
    result, _ = await run(agent)
    assert result["finish_reason"] == "max_calls"
    assert len(agent.calls) == 2


@pytest.mark.parametrize("limit", ["agent", "attempt"])
async def test_time_is_limited_while_the_model_talks(run: Run, limit: str) -> None:
    limits = AgentLimits(seconds=0.3) if limit == "agent" else None
    agent = AgentHarness(EFFECT, Hang("so far"), limits=limits)
    if limit == "attempt":
        agent.registry.add("chat", agent.chat, timeout_s=1.0)
    result, _ = await run(agent)
    assert (result["text"], result["finish_reason"]) == ("so far", "max_time")
    assert len(result["steps"]) == 1


async def test_time_is_limited_while_a_tool_works(run: Run) -> None:
    agent = AgentHarness(calls(("slow", {})), names=["slow"], limits=AgentLimits(seconds=0.3))
    agent.add("slow", sleep_long, timeout_s=60)
    began = time.monotonic()
    result, _ = await run(agent)
    assert result["finish_reason"] == "max_time"
    assert time.monotonic() - began < 30  # half of the tool's duration
    assert kinds_of_errors(result) == ["tool_timeout"]


@pytest.mark.parametrize("name", [None, "x.y"])
async def test_a_forced_call_is_forced_once(run: Run, name: str | None) -> None:
    named = {"type": "function", "function": {"name": name}}
    wanted = named if name else "required"
    agent = AgentHarness(EFFECT, "ok", names=["effect", "x.y"], tool_choice=wanted)
    agent.add("x.y")
    await run(agent)
    first, second = (request.tool_choice for request in agent.model.requests)
    assert first == ({"type": "function", "function": {"name": "x__y"}} if name else "required")
    assert second == "auto"


CALL = '<tool_call>\n{"name": "effect", "arguments": {"a": [1, "}"]}}\n</tool_call>'


async def listen(text: str, size: int, names: Any = ("effect",)) -> tuple[str, list[Any]]:
    sink = RecordingSink()
    listening = ToolCallSink(sink, names)
    for start in range(0, len(text), size):
        await listening.text(text[start : start + size])
    ended = await listening.end(2)
    assert sink.received == listening.emitted_text
    found = [(call.id, call.name, json.loads(call.arguments)) for call in ended]
    return listening.emitted_text, found


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


async def test_the_agent_runs_calls_written_as_text(run: Run) -> None:
    agent = AgentHarness(f"Let me see. {CALL}", "There.")
    result, events = await run(agent)
    assert result["text"] == "There."
    assert agent.arguments == [{"a": [1, "}"]}]
    [_, call, output] = agent.model.requests[1].messages
    assert call["content"] == "Let me see. "
    assert call["tool_calls"][0]["function"]["name"] == "effect"
    assert output["tool_call_id"] == "call_1_0"
    deltas = [data["delta"] for kind, _, data in events if kind == "message"]
    assert "".join(deltas) == "Let me see. There."
