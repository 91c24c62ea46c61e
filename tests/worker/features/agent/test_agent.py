"""An agent on every server: its answer, and its end when it is canceled at any point."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from sluice.worker.execution.executor import Outcome
from tests.support.worker.harness import MakeWorker, within
from tests.support.worker.model_tasks import Hang, calls
from tests.support.worker.timing import at_best_within
from tests.support.worker.tools import AgentHarness
from tests.worker.features.agent.conftest import Run

#: Limit from the cancel request to the end of the job.
PROMPTLY_S = 0.25


async def test_a_question_two_calls_and_an_answer(run: Run) -> None:
    agent = AgentHarness(
        calls(("calculator", {"expression": "6*7"}), ("effect", {"a": 1}), text="Let me see."),
        "It is 42.",
        names=["calculator", "effect"],
    )
    result, events = await run(agent)
    assert (result["text"], result["finish_reason"]) == ("It is 42.", "stop")
    assert (result["usage"]["total_tokens"], result["rounds"]) == (15 + 10, 2)
    first, second = agent.model.requests
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
    reported = [(kind, data) for kind, _, data in events if kind.startswith("tool_")]
    pairs = [("tool_call", "c0", 1), ("tool_result", "c0", 1)]
    pairs += [("tool_call", "c1", 1), ("tool_result", "c1", 1)]
    assert [(kind, data["id"], data["round"]) for kind, data in reported] == pairs
    called, came = (data for _, data in reported[:2])
    about = {"id": "c0", "name": "calculator", "round": 1, "attempt": 1}
    assert called == {**about, "arguments": {"expression": "6*7"}}
    assert came["output"] == {"value": 42}
    assert [step["name"] for step in result["steps"]] == ["calculator", "effect"]
    assert result["steps"][1]["output"] == "effect done"
    assert len(agent.calls) == 1
    text: dict[int, str] = {}
    for kind, _, data in events:
        if kind == "message":
            text[data.get("round", 1)] = text.get(data.get("round", 1), "") + data["delta"]
    assert text == {1: "Let me see.", 2: "It is 42."}


@pytest.mark.real_redis
@pytest.mark.parametrize("where", ["model", "tool"])
async def test_cancel_ends_the_job_at_once_with_its_partial_result(
    make_worker: MakeWorker, where: str
) -> None:
    async def trial() -> float:
        async def slow(call: Any, arguments: Any) -> None:
            running.set()
            await asyncio.sleep(60)

        if where == "model":
            agent = AgentHarness(calls(("effect", {})), Hang("so far"))
            running = agent.model.hanging
        else:
            agent = AgentHarness(calls(("slow", {}), text="so far"), names=["slow"])
            agent.add("slow", slow, timeout_s=60, repeatable=True)
            running = asyncio.Event()
        worker = make_worker(registry=agent.registry)
        await worker.client.flushall()
        attempt = await worker.attempt()
        run = asyncio.create_task(worker.executor.run(attempt))
        await asyncio.wait_for(running.wait(), 10)
        began = time.monotonic()
        worker.executor.cancel(attempt.lease.job_id)
        assert await within(5, run) is Outcome.CANCELED
        took_s = time.monotonic() - began
        result = await worker.result(attempt.lease.job_id)
        assert (result["text"], result["finish_reason"]) == ("so far", "canceled")
        assert len(result["steps"]) == (1 if where == "model" else 0)
        return took_s

    await at_best_within(PROMPTLY_S, trial)


@pytest.mark.fakeredis_only
async def test_cancel_between_two_steps_starts_nothing_more(make_worker: MakeWorker) -> None:
    async def ends_it(call: Any, arguments: Any) -> Any:
        worker.executor.cancel(call.job_id)
        return "too late"

    agent = AgentHarness(calls(("ends", {}), ("effect", {})), "never", names=["ends", "effect"])
    agent.add("ends", ends_it)
    worker = make_worker(registry=agent.registry)
    outcome, _ = await worker.execute()
    assert outcome is Outcome.CANCELED
    assert len(agent.calls) == 1
    assert len(agent.model.requests) == 1
