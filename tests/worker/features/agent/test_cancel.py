"""Canceling an agent at any point ends it at once and keeps its partial result."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.support.worker.agent import AgentHarness, calls, hang, says
from tests.support.worker.harness import MakeWorker, WorkerHarness, within
from tests.support.worker.timing import at_best_within
from tests.support.worker.tools import ANYTHING
from worker.execution.executor import Outcome
from worker.features.model.types import ChatRequest, Completion

#: Limit from the cancel request to the end of the job.
PROMPTLY_S = 0.25


def agent_that_waits(where: str, running: asyncio.Event) -> AgentHarness:
    loop = asyncio.get_running_loop()

    async def slow(call: Any, arguments: Any) -> Any:
        running.set()
        await asyncio.sleep(60)

    def blocking(call: Any, arguments: Any) -> Any:
        loop.call_soon_threadsafe(running.set)
        while not call.stopped:
            time.sleep(0.005)

    async def stubborn(call: Any, arguments: Any) -> Any:
        running.set()
        while not call.stopped:
            try:
                await asyncio.sleep(0.5)
            except asyncio.CancelledError:
                await asyncio.sleep(0.5)

    async def talk(context: Any, request: ChatRequest, sink: Any) -> Completion:
        running.set()
        return await hang(context, request, sink)

    if where == "model":
        return AgentHarness(calls(("effect", {})), talk)
    agent = AgentHarness(calls(("slow", {}), text="so far"), names=["slow"])
    function = {"tool": slow, "thread": blocking, "stubborn tool": stubborn}[where]
    agent.toolbox.add(
        function, name="slow", description="x", parameters=ANYTHING, timeout_s=60, repeatable=True
    )
    return agent


async def time_to_cancel(
    worker: WorkerHarness, running: asyncio.Event
) -> tuple[float, dict[str, Any]]:
    attempt = await worker.attempt()
    run = asyncio.create_task(worker.executor.run(attempt))
    await asyncio.wait_for(running.wait(), 10)
    began = time.monotonic()
    worker.executor.cancel(attempt.lease.job_id)
    assert await within(5, run) is Outcome.CANCELED
    took_s = time.monotonic() - began
    return took_s, json.loads((await worker.job(attempt.lease.job_id))[b"result"])


@pytest.mark.real_redis
@pytest.mark.parametrize("where", ["model", "tool", "thread", "stubborn tool"])
async def test_cancel_ends_the_job_at_once_with_its_partial_result(
    make_worker: MakeWorker, where: str
) -> None:
    async def trial() -> float:
        running = asyncio.Event()
        worker = make_worker(registry=agent_that_waits(where, running).registry)
        await worker.client.flushall()
        took_s, result = await time_to_cancel(worker, running)
        assert (result["text"], result["finish_reason"]) == ("so far", "canceled")
        assert len(result["steps"]) == (1 if where == "model" else 0)
        return took_s

    await at_best_within(PROMPTLY_S, trial)


@pytest.mark.fakeredis_only
async def test_cancel_between_two_steps_starts_nothing_more(make_worker: MakeWorker) -> None:
    async def ends_it(call: Any, arguments: Any) -> Any:
        worker.executor.cancel(call.job_id)
        return "too late"

    agent = AgentHarness(
        calls(("ends", {}), ("effect", {})), says("never"), names=["ends", "effect"]
    )
    agent.add("ends", ends_it)
    worker = make_worker(registry=agent.registry)
    outcome, _ = await worker.execute()
    assert outcome is Outcome.CANCELED
    assert len(agent.calls) == 1
    assert len(agent.model.asked) == 1
