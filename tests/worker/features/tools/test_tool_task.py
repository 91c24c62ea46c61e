"""The `tool` task in a worker: result, events, refusals, cancel, and crashes at every step."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from pydantic import BaseModel

from common.jobs.options import JobOptions
from tests.support.worker.harness import MakeWorker, WorkerHarness, within
from tests.support.worker.timing import at_best_within
from tests.support.worker.tools import ANYTHING
from worker.errors import AttemptLost, JobError
from worker.execution.executor import Outcome
from worker.features.tools import builtin
from worker.features.tools.tool import Call
from worker.handlers import tool
from worker.queue.claim import ClaimedJob
from worker.registry import Registry


class Page(BaseModel):
    text: str
    copies: int = 1


class ToolHarness:
    """A registry with tools whose calls are counted."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.toolbox = self.registry.toolbox
        self.toolbox.configure("all", 5.0, 1000)
        builtin.register_tools(self.toolbox)
        tool.add_handler(self.registry)
        self.calls: list[str] = []

    def add(self, name: str, function: Any, **terms: Any) -> None:
        async def counted(call: Call, arguments: dict[str, Any]) -> Any:
            self.calls.append(call.key)
            return await function(call, arguments)

        terms = {"description": "x", "parameters": ANYTHING, **terms}
        self.toolbox.add(counted, name=name, **terms)


def payload(name: str, args: Any = None, **more: Any) -> bytes:
    return json.dumps({"tool": name, "args": args or {}, **more}).encode()


async def run(worker: WorkerHarness, raw: bytes, **job: Any) -> tuple[Outcome, str]:
    attempt = await worker.attempt(raw, "tool", **job)
    return await within(10, worker.executor.run(attempt)), attempt.lease.job_id


async def posted(worker: WorkerHarness, raw: bytes, **job: Any) -> str:
    """Post a job for a worker that reads the queue."""
    if not await worker.client.exists(worker.keys.queue):
        await worker.group()
        worker.start()
    [job_id] = await worker.post(payload=raw, task="tool", **job)
    return job_id


async def result(worker: WorkerHarness, job_id: str) -> Any:
    return json.loads((await worker.job(job_id))[b"result"])


async def event_data(worker: WorkerHarness, job_id: str, *kinds: str) -> list[Any]:
    return [data for kind, _, data in await worker.parsed_events(job_id) if kind in kinds]


async def test_a_call_with_its_result_and_events(make_worker: MakeWorker) -> None:
    worker = make_worker(registry=ToolHarness().registry)
    outcome, job_id = await run(worker, payload("calculator", {"expression": "6 * 7"}))
    assert outcome is Outcome.DONE
    answer = await result(worker, job_id)
    assert answer == {"output": {"value": 42}, "ms": answer["ms"]}
    [called] = await event_data(worker, job_id, "tool_call")
    about = {"id": "call", "name": "calculator", "attempt": 1}
    assert called == {**about, "arguments": {"expression": "6 * 7"}}
    [came] = await event_data(worker, job_id, "tool_result")
    assert came == {**about, "output": {"value": 42}, "ms": came["ms"]}
    events = await worker.parsed_events(job_id)
    assert {step for kind, step, _ in events if kind.startswith("tool_")} == {"worker.tool"}


@pytest.mark.fakeredis_only
async def test_errors_have_a_kind(make_worker: MakeWorker) -> None:
    class NoInk(JobError):
        kind = "no_ink"

    async def printer(call: Call, arguments: Any) -> None:
        raise NoInk("fill it up")

    tools = ToolHarness()
    tools.add("printer", printer)
    worker = make_worker(registry=tools.registry)
    for raw, kind, says in (
        (payload("hammer"), "unknown_tool", "'hammer'"),
        (payload("sluice.step"), "unknown_tool", "'sluice.step'"),
        (payload("workflow.step"), "unknown_tool", "'workflow.step'"),
        (payload("calculator"), "tool_arguments_invalid", "'expression' is a required property"),
        (payload("calculator", {"expression": 5}), "tool_arguments_invalid", 'at "/expression"'),
        (payload("calculator", {"expression": "1/0"}), "tool_failed", "division by zero"),
        (b'{"args": {}}', "invalid_payload", "tool"),
        (b'{"tool": "now", "args": [1]}', "invalid_payload", "args"),
        (b'{"tool": "now", "more": 1}', "invalid_payload", "more"),
        (b"nonsense", "invalid_payload", "_raw"),
        (payload("printer"), "no_ink", "fill it up"),
    ):
        outcome, job_id = await run(worker, raw)
        assert outcome is Outcome.ERROR
        error = await worker.error(job_id)
        assert error["kind"] == kind
        assert says in error["message"]


@pytest.mark.fakeredis_only
async def test_a_key_may_use_only_its_tools(make_worker: MakeWorker) -> None:
    worker = make_worker(registry=ToolHarness().registry)
    only_now = JobOptions(tools=("now",)).to_json()
    for name, args in (("calculator", {"expression": "1"}), ("absent", {})):
        job_id = await posted(worker, payload(name, args), options=only_now)
        assert await worker.settled(job_id) == b"error"
        error = await worker.error(job_id)
        assert error["kind"] == "unknown_tool"
        assert error["message"] == f"there is no tool {name!r} for this job; available: now"
    job_id = await posted(worker, payload("now"), options=only_now)
    assert await worker.settled(job_id) == b"done"


@pytest.mark.fakeredis_only
async def test_a_dry_run_checks_and_calls_nothing(make_worker: MakeWorker) -> None:
    tools = ToolHarness()

    async def never(call: Call, arguments: Any) -> None:
        raise AssertionError

    tools.add("danger", never, parameters=Page.model_json_schema(), timeout_s=2.0)
    worker = make_worker(registry=tools.registry)
    raw = payload("danger", {"text": "x"}, dry_run=True)
    outcome, job_id = await run(worker, raw)
    assert outcome is Outcome.DONE
    assert await result(worker, job_id) == {
        "output": {
            "call": "danger",
            "arguments": {"text": "x"},
            "timeout_s": 2.0,
            "output_bytes": 1000,
            "repeatable": False,
        },
        "ms": 0,
        "dry_run": True,
    }
    assert await event_data(worker, job_id, "tool_call", "tool_result") == []
    outcome, job_id = await run(worker, payload("danger", {"copies": 1}, dry_run=True))
    assert (await worker.error(job_id))["kind"] == "tool_arguments_invalid"


@pytest.mark.real_redis
async def test_cancel_in_the_middle_of_a_call(make_worker: MakeWorker) -> None:
    tools, running = ToolHarness(), asyncio.Event()

    async def slow(call: Call, arguments: Any) -> None:
        running.set()
        await asyncio.sleep(60)

    tools.add("slow", slow, timeout_s=60)
    worker = make_worker(registry=tools.registry)

    async def trial() -> float:
        running.clear()
        job_id = await posted(worker, payload("slow"))
        await asyncio.wait_for(running.wait(), 10)
        began = time.monotonic()
        await worker.cancel(job_id)
        assert await worker.settled(job_id) == b"canceled"
        return time.monotonic() - began

    await at_best_within(1.0, trial)


def dying(worker: WorkerHarness, tools: ToolHarness, point: str) -> None:
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


async def again(worker: WorkerHarness, attempt: ClaimedJob) -> Outcome:
    """Another worker takes over the job, as after a crash."""
    lease = await worker.take_over(attempt.lease)
    return await within(10, worker.executor.run(ClaimedJob(lease, "tool", "tool", attempt.payload)))


@pytest.mark.parametrize("point", ["after the intent", "after the tool ran", "after the result"])
async def test_no_crash_repeats_a_call_that_runs_once(make_worker: MakeWorker, point: str) -> None:
    async def effect(call: Call, arguments: Any) -> str:
        return "done"

    for terms in ({}, {"repeatable": True}, {"takes_key": True}):
        tools = ToolHarness()
        tools.add("effect", effect, **terms)
        worker = make_worker(registry=tools.registry)
        dying(worker, tools, point)
        first = await worker.attempt(payload("effect"), "tool")
        assert await within(10, worker.executor.run(first)) is Outcome.LOST
        outcome = await again(worker, first)
        job_id = first.lease.job_id
        if terms:
            assert outcome is Outcome.DONE
            assert tools.calls == [f"{job_id}:call"] * 2
        elif point == "after the result":
            assert outcome is Outcome.DONE
            assert tools.calls == [f"{job_id}:call"]
            assert (await result(worker, job_id))["output"] == "done"
        else:
            assert outcome is Outcome.ERROR
            assert len(tools.calls) == (0 if point == "after the intent" else 1)
            assert (await worker.error(job_id))["kind"] == "tool_outcome_unknown"


@pytest.mark.fakeredis_only
async def test_a_failed_call_is_retried_if_configured(make_worker: MakeWorker) -> None:
    async def shaky(call: Call, arguments: Any) -> str:
        if len(tools.calls) < 3:
            raise ValueError("not yet")
        return "at last"

    async def sets(call: Call, arguments: Any) -> Any:
        return {1, 2}

    tools = ToolHarness()
    tools.add("shaky", shaky)
    tools.add("sets", sets)
    worker = make_worker(registry=tools.registry)
    job_id = await posted(worker, payload("shaky"), max_attempts=5)
    assert await worker.settled(job_id) == b"done"
    assert (await result(worker, job_id))["output"] == "at last"
    assert tools.calls == [f"{job_id}:call"] * 3
    tools.calls.clear()
    job_id = await posted(worker, payload("shaky"))
    assert await worker.settled(job_id) == b"error"
    assert len(tools.calls) == 1
    # A call with an invalid output is not repeated.
    tools.calls.clear()
    job_id = await posted(worker, payload("sets"), max_attempts=3)
    assert await worker.settled(job_id) == b"error"
    assert (await worker.error(job_id))["kind"] == "tool_failed"
    assert len(tools.calls) == 1


@pytest.mark.fakeredis_only
async def test_long_output_and_timeouts_are_in_the_events(make_worker: MakeWorker) -> None:
    async def chatty(call: Call, arguments: Any) -> str:
        return "x" * 5000

    async def slow(call: Call, arguments: Any) -> None:
        await asyncio.sleep(60)

    tools = ToolHarness()
    tools.add("chatty", chatty)
    tools.add("slow", slow, timeout_s=0.05)
    worker = make_worker(registry=tools.registry)
    _, job_id = await run(worker, payload("chatty"))
    answer = await result(worker, job_id)
    assert answer["truncated"] is True
    assert len(answer["output"]) <= 1000
    [event] = await event_data(worker, job_id, "tool_result")
    assert (event["output"], event["truncated"]) == (answer["output"], True)
    outcome, job_id = await run(worker, payload("slow"))
    assert outcome is Outcome.ERROR
    assert (await worker.error(job_id))["kind"] == "tool_timeout"
    [event] = await event_data(worker, job_id, "tool_result")
    assert event["error"]["kind"] == "tool_timeout"
