"""The `tool` task in a worker: result, events, refusals, cancel, and crashes at every step."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from pydantic import BaseModel

from sluice.common.jobs.options import JobOptions
from sluice.worker.errors import AttemptLost, JobError
from sluice.worker.execution.executor import Outcome
from sluice.worker.features.tools.tool import Call
from sluice.worker.handlers import tool
from sluice.worker.queue.claim import ClaimedJob
from tests.support.worker.harness import MakeWorker, WorkerHarness, within
from tests.support.worker.timing import at_best_within
from tests.support.worker.tools import CountedTools, events, raising, returning, sleep_long


class Page(BaseModel):
    text: str
    copies: int = 1


@pytest.fixture
def tools() -> CountedTools:
    tools = CountedTools()
    tools.toolbox.configure("all", 5.0, 1000)
    tool.add_handler(tools.registry)
    return tools


@pytest.fixture
def worker(make_worker: MakeWorker, tools: CountedTools) -> WorkerHarness:
    return make_worker(registry=tools.registry)


def payload(name: str, args: Any = None, **more: Any) -> bytes:
    return json.dumps({"tool": name, "args": args or {}, **more}).encode()


async def run(worker: WorkerHarness, raw: bytes) -> str:
    """Run a job that succeeds; returns its id."""
    outcome, job_id = await worker.execute(raw, "tool")
    assert outcome is Outcome.DONE
    return job_id


async def fail(worker: WorkerHarness, raw: bytes) -> tuple[str, dict[str, Any]]:
    """Run a job that fails; returns its id and its error."""
    outcome, job_id = await worker.execute(raw, "tool")
    assert outcome is Outcome.ERROR
    return job_id, await worker.error(job_id)


async def test_a_call_with_its_result_and_events(worker: WorkerHarness) -> None:
    job_id = await run(worker, payload("calculator", {"expression": "6 * 7"}))
    answer = await worker.result(job_id)
    assert answer == {"output": {"value": 42}, "ms": answer["ms"]}
    about = {"id": "call", "name": "calculator", "attempt": 1}
    [called] = await events(worker, job_id, "tool_call")
    assert called == {**about, "arguments": {"expression": "6 * 7"}}
    [came] = await events(worker, job_id, "tool_result")
    assert came == {**about, "output": {"value": 42}, "ms": came["ms"]}
    every = await worker.parsed_events(job_id)
    assert {step for kind, step, _ in every if kind.startswith("tool_")} == {"worker.tool"}


@pytest.mark.fakeredis_only
async def test_errors_have_a_kind(worker: WorkerHarness, tools: CountedTools) -> None:
    class NoInk(JobError):
        kind = "no_ink"

    tools.add("printer", raising(NoInk("fill it up")))
    for raw, kind, says in (
        (payload("hammer"), "unknown_tool", "'hammer'"),
        (payload("workflow.step"), "unknown_tool", "'workflow.step'"),
        (payload("calculator", {"expression": 5}), "tool_arguments_invalid", 'at "/expression"'),
        (payload("calculator", {"expression": "1/0"}), "tool_failed", "division by zero"),
        (b'{"args": {}}', "invalid_payload", "tool"),
        (b'{"tool": "now", "args": [1]}', "invalid_payload", "args"),
        (b'{"tool": "now", "more": 1}', "invalid_payload", "more"),
        (b"nonsense", "invalid_payload", "_raw"),
        (payload("printer"), "no_ink", "fill it up"),
    ):
        _, error = await fail(worker, raw)
        assert error["kind"] == kind
        assert says in error["message"]


@pytest.mark.fakeredis_only
async def test_a_key_may_use_only_its_tools(worker: WorkerHarness) -> None:
    job: dict[str, Any] = {"task": "tool", "options": JobOptions(tools=("now",)).to_json()}
    for name, args in (("calculator", {"expression": "1"}), ("absent", {})):
        job_id = await worker.run_job(b"error", payload=payload(name, args), **job)
        error = await worker.error(job_id)
        assert error["kind"] == "unknown_tool"
        assert error["message"] == f"there is no tool {name!r} for this job; available: now"
    await worker.run_job(payload=payload("now"), **job)


@pytest.mark.fakeredis_only
async def test_a_dry_run_checks_and_calls_nothing(
    worker: WorkerHarness, tools: CountedTools
) -> None:
    tools.add("danger", parameters=Page.model_json_schema(), timeout_s=2.0)
    job_id = await run(worker, payload("danger", {"text": "x"}, dry_run=True))
    would_be = {"call": "danger", "arguments": {"text": "x"}, "timeout_s": 2.0}
    would_be |= {"output_bytes": 1000, "repeatable": False}
    assert await worker.result(job_id) == {"output": would_be, "ms": 0, "dry_run": True}
    assert await events(worker, job_id, "tool_call", "tool_result") == []
    assert tools.calls == []
    _, error = await fail(worker, payload("danger", {"copies": 1}, dry_run=True))
    assert error["kind"] == "tool_arguments_invalid"


@pytest.mark.real_redis
async def test_cancel_in_the_middle_of_a_call(worker: WorkerHarness, tools: CountedTools) -> None:
    running = asyncio.Event()

    async def slow(call: Call, arguments: Any) -> None:
        running.set()
        await asyncio.sleep(60)

    tools.add("slow", slow, timeout_s=60)
    worker.start()

    async def trial() -> float:
        running.clear()
        [job_id] = await worker.post(task="tool", payload=payload("slow"))
        await asyncio.wait_for(running.wait(), 10)
        began = time.monotonic()
        await worker.cancel(job_id)
        assert await worker.settled(job_id) == b"canceled"
        return time.monotonic() - began

    await at_best_within(1.0, trial)


def dying(tools: CountedTools, point: str) -> None:
    """End the first attempt at `point`, as if its worker had crashed."""

    async def handler(context: Any, payload: tool.ToolPayload) -> Any:
        if context.attempt > 1:
            return await original(context, payload)
        save = context.save

        async def save_or_die(name: str, value: Any) -> None:
            begun = "begun" in value
            if point == "after the tool ran" and not begun:
                raise AttemptLost
            await save(name, value)
            if point == ("after the intent" if begun else "after the result"):
                raise AttemptLost

        context.save = save_or_die
        await original(context, payload)
        raise AttemptLost

    original = tools.registry.resolve("tool").function
    tools.registry.add("tool", handler)


@pytest.mark.parametrize("terms", [{}, {"repeatable": True}, {"takes_key": True}], ids=str)
@pytest.mark.parametrize("point", ["after the intent", "after the tool ran", "after the result"])
async def test_no_crash_repeats_a_call_that_runs_once(
    worker: WorkerHarness, tools: CountedTools, point: str, terms: dict[str, bool]
) -> None:
    tools.add("effect", **terms)
    dying(tools, point)
    first = await worker.attempt(payload("effect"), "tool")
    assert await within(10, worker.executor.run(first)) is Outcome.LOST
    lease = await worker.take_over(first.lease)
    again = ClaimedJob(lease, "tool", "tool", first.payload)
    outcome = await within(10, worker.executor.run(again))
    job_id = first.lease.job_id
    if terms:
        assert outcome is Outcome.DONE
        assert tools.calls == [f"{job_id}:call"] * 2
    elif point == "after the result":
        assert outcome is Outcome.DONE
        assert tools.calls == [f"{job_id}:call"]
        assert (await worker.result(job_id))["output"] == "effect done"
    else:
        assert outcome is Outcome.ERROR
        assert len(tools.calls) == (0 if point == "after the intent" else 1)
        assert (await worker.error(job_id))["kind"] == "tool_outcome_unknown"


@pytest.mark.fakeredis_only
async def test_a_failed_call_is_retried_if_configured(
    worker: WorkerHarness, tools: CountedTools
) -> None:
    async def shaky(call: Call, arguments: Any) -> str:
        if len(tools.calls) < 3:
            raise ValueError("not yet")
        return "at last"

    tools.add("shaky", shaky)
    tools.add("sets", returning({1, 2}))
    job_id = await worker.run_job(task="tool", payload=payload("shaky"), max_attempts=5)
    assert (await worker.result(job_id))["output"] == "at last"
    assert tools.calls == [f"{job_id}:call"] * 3
    # Not by default, and not if the output is invalid.
    for name, options in (("shaky", {}), ("sets", {"max_attempts": 3})):
        tools.calls.clear()
        job_id = await worker.run_job(b"error", task="tool", payload=payload(name), **options)
        assert (await worker.error(job_id))["kind"] == "tool_failed"
        assert len(tools.calls) == 1


@pytest.mark.fakeredis_only
async def test_long_output_and_timeouts_are_in_the_events(
    worker: WorkerHarness, tools: CountedTools
) -> None:
    tools.add("chatty", returning("x" * 5000))
    tools.add("slow", sleep_long, timeout_s=0.05)
    job_id = await run(worker, payload("chatty"))
    answer = await worker.result(job_id)
    assert answer["truncated"] is True
    assert len(answer["output"]) <= 1000
    [event] = await events(worker, job_id, "tool_result")
    assert (event["output"], event["truncated"]) == (answer["output"], True)
    job_id, error = await fail(worker, payload("slow"))
    [event] = await events(worker, job_id, "tool_result")
    assert error["kind"] == event["error"]["kind"] == "tool_timeout"
