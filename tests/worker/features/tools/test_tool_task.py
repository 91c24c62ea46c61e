"""The `tool` task in a worker: result, events, refusals, cancel, and crashes at every step."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from pydantic import BaseModel

from common.jobs.options import JobOptions
from tests.worker.features.tools.kit import ANYTHING
from tests.worker.kit import Rig, RigMaker, within
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


class Desk:
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


async def run(rig: Rig, raw: bytes, **job: Any) -> tuple[Outcome, str]:
    attempt = await rig.attempt(raw, "tool", **job)
    return await within(10, rig.executor.run(attempt)), attempt.lease.job_id


async def posted(rig: Rig, raw: bytes, **job: Any) -> str:
    """A job for a worker that reads."""
    if not await rig.client.exists(rig.keys.queue):
        await rig.group()
        rig.start()
    [job_id] = await rig.post(payload=raw, task="tool", **job)
    return job_id


async def result(rig: Rig, job_id: str) -> Any:
    return json.loads((await rig.job(job_id))[b"result"])


async def told(rig: Rig, job_id: str, *kinds: str) -> list[Any]:
    return [data for kind, _, data in await rig.story(job_id) if kind in kinds]


async def test_a_tool_is_called_and_the_story_told(rig: RigMaker) -> None:
    worker = rig(registry=Desk().registry)
    outcome, job_id = await run(worker, payload("calculator", {"expression": "6 * 7"}))
    assert outcome is Outcome.DONE
    answer = await result(worker, job_id)
    assert answer == {"output": {"value": 42}, "ms": answer["ms"]}
    story = await worker.story(job_id)
    [called] = [data for kind, _, data in story if kind == "tool_call"]
    assert called == {
        "id": "call",
        "name": "calculator",
        "arguments": {"expression": "6 * 7"},
        "attempt": 1,
    }
    [came] = [data for kind, _, data in story if kind == "tool_result"]
    assert came == {
        "id": "call",
        "name": "calculator",
        "output": {"value": 42},
        "ms": came["ms"],
        "attempt": 1,
    }
    assert {step for kind, step, _ in story if kind.startswith("tool_")} == {"worker.tool"}


@pytest.mark.parametrize(
    ("raw", "kind", "says"),
    [
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
    ],
)
async def test_what_cannot_be_done_has_a_name(
    fake_rig: RigMaker, raw: bytes, kind: str, says: str
) -> None:
    worker = fake_rig(registry=Desk().registry)
    outcome, job_id = await run(worker, raw)
    assert outcome is Outcome.ERROR
    error = await worker.error(job_id)
    assert error["kind"] == kind
    assert says in error["message"]


async def test_a_key_may_use_only_its_own_tools(fake_rig: RigMaker) -> None:
    worker = fake_rig(registry=Desk().registry)
    only_now = JobOptions(tools=("now",)).to_json()
    for name, args in (("calculator", {"expression": "1"}), ("absent", {})):
        job_id = await posted(worker, payload(name, args), options=only_now)
        assert await worker.settled(job_id) == b"error"
        error = await worker.error(job_id)
        assert error["kind"] == "unknown_tool"
        assert error["message"] == f"there is no tool {name!r} for this job; available: now"
    job_id = await posted(worker, payload("now"), options=only_now)
    assert await worker.settled(job_id) == b"done"


async def test_a_dry_run_checks_and_calls_nothing(fake_rig: RigMaker) -> None:
    desk = Desk()

    async def never(call: Call, arguments: Any) -> None:
        raise AssertionError

    desk.add("danger", never, parameters=Page.model_json_schema(), timeout_s=2.0)
    worker = fake_rig(registry=desk.registry)
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
    assert await told(worker, job_id, "tool_call", "tool_result") == []
    outcome, job_id = await run(worker, payload("danger", {"copies": 1}, dry_run=True))
    assert (await worker.error(job_id))["kind"] == "tool_arguments_invalid"


async def test_a_long_output_is_cut(fake_rig: RigMaker) -> None:
    desk = Desk()

    async def chatty(call: Call, arguments: Any) -> str:
        return "x" * 5000

    desk.add("chatty", chatty)
    worker = fake_rig(registry=desk.registry)
    _, job_id = await run(worker, payload("chatty"))
    answer = await result(worker, job_id)
    assert answer["truncated"] is True
    assert len(answer["output"]) <= 1000
    [event] = await told(worker, job_id, "tool_result")
    assert (event["output"], event["truncated"]) == (answer["output"], True)


async def test_a_tool_that_takes_too_long(fake_rig: RigMaker) -> None:
    desk = Desk()

    async def slow(call: Call, arguments: Any) -> None:
        await asyncio.sleep(60)

    desk.add("slow", slow, timeout_s=0.05)
    worker = fake_rig(registry=desk.registry)
    outcome, job_id = await run(worker, payload("slow"))
    assert outcome is Outcome.ERROR
    assert (await worker.error(job_id))["kind"] == "tool_timeout"
    [event] = await told(worker, job_id, "tool_result")
    assert event["error"]["kind"] == "tool_timeout"


async def test_cancel_in_the_middle_of_a_call(real_rig: RigMaker) -> None:
    desk, running = Desk(), asyncio.Event()

    async def slow(call: Call, arguments: Any) -> None:
        running.set()
        await asyncio.sleep(60)

    desk.add("slow", slow, timeout_s=60)
    worker = real_rig(registry=desk.registry)
    best_s = float("inf")
    for _ in range(3):  # the machine may be busy with something else: the best of them counts
        running.clear()
        job_id = await posted(worker, payload("slow"))
        await asyncio.wait_for(running.wait(), 10)
        began = time.monotonic()
        await worker.cancel(job_id)
        assert await worker.settled(job_id) == b"canceled"
        best_s = min(best_s, time.monotonic() - began)
        if best_s < 1:
            break
    assert best_s < 1


# -- a worker that dies -----------------------------------------------------------------------


def dying(worker: Rig, desk: Desk, place: str) -> None:
    """The first attempt ends at `place`, as if its worker were gone."""

    async def handler(context: Any, payload: tool.ToolPayload) -> Any:
        if context.attempt > 1:
            return await original(context, payload)
        save = context.save

        async def save_or_die(name: str, value: Any) -> None:
            begun = "begun" in value
            if place == "after the tool ran" and not begun:
                raise AttemptLost
            await save(name, value)
            if place == ("after the intent" if begun else "after the result"):
                raise AttemptLost

        context.save = save_or_die
        await original(context, payload)
        raise AttemptLost

    original = desk.registry.resolve("tool").function
    desk.registry.add("tool", handler)


async def again(worker: Rig, attempt: ClaimedJob) -> Outcome:
    """Another worker takes the job up, as after a crash."""
    lease = await worker.take_over(attempt.lease)
    return await within(10, worker.executor.run(ClaimedJob(lease, "tool", "tool", attempt.payload)))


PLACES = ["after the intent", "after the tool ran", "after the result"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "terms", [{}, {"repeatable": True}, {"takes_key": True}], ids=["once", "repeatable", "key"]
)
async def test_no_crash_makes_a_call_twice_that_may_be_made_once(
    real_rig: RigMaker, place: str, terms: dict[str, Any]
) -> None:
    desk = Desk()

    async def effect(call: Call, arguments: Any) -> str:
        return "done"

    desk.add("effect", effect, **terms)
    worker = real_rig(registry=desk.registry)
    dying(worker, desk, place)
    first = await worker.attempt(payload("effect"), "tool")
    assert await within(10, worker.executor.run(first)) is Outcome.LOST
    outcome = await again(worker, first)
    job_id = first.lease.job_id
    if terms:
        assert outcome is Outcome.DONE
        assert desk.calls == [f"{job_id}:call"] * 2
    elif place == "after the result":
        assert outcome is Outcome.DONE
        assert desk.calls == [f"{job_id}:call"]
        assert (await result(worker, job_id))["output"] == "done"
    else:
        assert outcome is Outcome.ERROR
        assert len(desk.calls) == (0 if place == "after the intent" else 1)
        assert (await worker.error(job_id))["kind"] == "tool_outcome_unknown"


async def test_a_call_that_failed_may_be_made_again_if_somebody_asks(real_rig: RigMaker) -> None:
    desk = Desk()

    async def shaky(call: Call, arguments: Any) -> str:
        if len(desk.calls) < 3:
            raise ValueError("not yet")
        return "at last"

    desk.add("shaky", shaky)
    worker = real_rig(registry=desk.registry)
    job_id = await posted(worker, payload("shaky"), max_attempts=5)
    assert await worker.settled(job_id) == b"done"
    assert (await result(worker, job_id))["output"] == "at last"
    assert desk.calls == [f"{job_id}:call"] * 3
    desk.calls.clear()
    job_id = await posted(worker, payload("shaky"))
    assert await worker.settled(job_id) == b"error"
    assert len(desk.calls) == 1


async def test_a_deed_is_done_once_though_its_output_is_of_no_use(real_rig: RigMaker) -> None:
    desk = Desk()

    async def sets(call: Call, arguments: Any) -> Any:
        return {1, 2}

    desk.add("sets", sets)
    worker = real_rig(registry=desk.registry)
    job_id = await posted(worker, payload("sets"), max_attempts=3)
    assert await worker.settled(job_id) == b"error"
    assert (await worker.error(job_id))["kind"] == "tool_failed"
    assert len(desk.calls) == 1


async def test_a_tools_own_error_keeps_its_name(fake_rig: RigMaker) -> None:
    class NoInk(JobError):
        kind = "no_ink"

    desk = Desk()

    async def printer(call: Call, arguments: Any) -> None:
        raise NoInk("fill it up")

    desk.add("printer", printer)
    worker = fake_rig(registry=desk.registry)
    _, job_id = await run(worker, payload("printer"))
    error = await worker.error(job_id)
    assert (error["kind"], error["message"]) == ("no_ink", "fill it up")
