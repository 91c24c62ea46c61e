"""Tool calls that a model writes as text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.worker.features.agent.kit import Bench, answer, events, says
from tests.worker.kit import RigMaker
from worker.execution.executor import Outcome
from worker.features.agent.answer import ToolCallSink
from worker.features.model.types import NullSink

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


@pytest.mark.parametrize("size", [1, 1000])
async def test_several_calls_and_missing_ends(size: int) -> None:
    other = '<tool_call>{"name":"effect","parameters":{}}'
    said, found = await listen(f"{CALL}\n{CALL}{other}", size)
    assert said == ""
    assert [call[0] for call in found] == ["call_2_0", "call_2_1", "call_2_2"]
    assert found[2][2] == {}


@pytest.mark.parametrize(
    "text",
    [
        "a < b and <tool> or <tool_cal",
        "The tag is <tool_call> and nothing more",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 5}</tool_call>',
        '<tool_call>{"name": ["effect"]}</tool_call>',
        "<tool_call>[1]</tool_call>",
        "<tool_call>{broken</tool_call>",
        f"{CALL} and then some text",
        "<tool_call>" + "[" * 100_000,
        "plain",
        "",
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
async def test_text_that_is_not_a_call_is_forwarded(text: str, size: int) -> None:
    if len(text) > 1000 and size == 1:
        size = 997
    assert await listen(text, size) == (text, [])


async def test_without_tools_all_text_is_forwarded() -> None:
    assert await listen(CALL, 3, names=()) == (CALL, [])


async def test_the_agent_runs_calls_written_as_text(fake_rig: RigMaker) -> None:
    bench = Bench(says(f"Let me see. {CALL}"), says("There."))
    worker = fake_rig(registry=bench.registry)
    outcome, job_id = await worker.execute()
    assert outcome is Outcome.DONE
    assert (await answer(worker, job_id))["text"] == "There."
    assert bench.arguments == [{"a": [1, "}"]}]
    [_, call, result] = bench.model.asked[1].messages
    assert call["content"] == "Let me see. "
    assert call["tool_calls"][0]["function"]["name"] == "effect"
    assert result["tool_call_id"] == "call_1_0"
    deltas = [data["delta"] for data in await events(worker, job_id, "message")]
    assert "".join(deltas) == "Let me see. There."
