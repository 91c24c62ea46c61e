"""Canceling an agent at any point ends it at once and keeps its partial result."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.worker.features.agent.kit import Bench, calls, hang, says
from tests.worker.features.tools.kit import ANYTHING
from tests.worker.kit import Rig, RigMaker, within
from worker.execution.executor import Outcome
from worker.features.model.types import ChatRequest, Completion

#: Limit from the cancel request to the end of the job. The best of TRIES counts, because the
#: machine may be busy.
PROMPTLY_S, TRIES = 0.25, 3


def bench_that_waits(where: str, running: asyncio.Event) -> Bench:
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
        return Bench(calls(("effect", {})), talk)
    bench = Bench(calls(("slow", {}), text="so far"), names=["slow"])
    function = {"tool": slow, "thread": blocking, "stubborn tool": stubborn}[where]
    bench.toolbox.add(
        function, name="slow", description="x", parameters=ANYTHING, timeout_s=60, repeatable=True
    )
    return bench


async def time_to_cancel(worker: Rig, running: asyncio.Event) -> tuple[float, dict[str, Any]]:
    attempt = await worker.attempt()
    run = asyncio.create_task(worker.executor.run(attempt))
    await asyncio.wait_for(running.wait(), 10)
    began = time.monotonic()
    worker.executor.cancel(attempt.lease.job_id)
    assert await within(5, run) is Outcome.CANCELED
    took_s = time.monotonic() - began
    return took_s, json.loads((await worker.job(attempt.lease.job_id))[b"result"])


@pytest.mark.parametrize("where", ["model", "tool", "thread", "stubborn tool"])
async def test_cancel_ends_the_job_at_once_with_its_partial_result(
    real_rig: RigMaker, where: str
) -> None:
    best_s = float("inf")
    for _ in range(TRIES):
        running = asyncio.Event()
        worker = real_rig(registry=bench_that_waits(where, running).registry)
        await worker.client.flushall()
        took_s, result = await time_to_cancel(worker, running)
        assert (result["text"], result["finish_reason"]) == ("so far", "canceled")
        assert len(result["steps"]) == (1 if where == "model" else 0)
        best_s = min(best_s, took_s)
        if best_s < PROMPTLY_S:
            break
    assert best_s < PROMPTLY_S


async def test_cancel_between_two_steps_starts_nothing_more(fake_rig: RigMaker) -> None:
    async def ends_it(call: Any, arguments: Any) -> Any:
        worker.executor.cancel(call.job_id)
        return "too late"

    bench = Bench(calls(("ends", {}), ("effect", {})), says("never"), names=["ends", "effect"])
    bench.add("ends", ends_it)
    worker = fake_rig(registry=bench.registry)
    outcome, _ = await worker.execute()
    assert outcome is Outcome.CANCELED
    assert len(bench.calls) == 1
    assert len(bench.model.asked) == 1
