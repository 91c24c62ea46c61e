"""Computation in child processes ends with its step."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from tests.support.worker.computing import dies, double, takes_all_memory, works_for_ever
from tests.support.worker.tools import events
from tests.support.worker.workflows import FlowMaker, WorkflowWorker, definition
from worker.features.workflows.context import StepContext
from worker.features.workflows.errors import StepError
from worker.features.workflows.output import StepItem, StepOutput

pytestmark = pytest.mark.fakeredis_only

FLOW = definition("gather", max_attempts=2)


async def gather(context: StepContext) -> StepOutput:
    path = context.options.get("path")
    if path:
        await context.compute(works_for_ever, path)
    if context.options.get("dies") and context.attempt == 1:
        await context.compute(dies)
    if context.options.get("greedy"):
        try:
            await context.compute(takes_all_memory)
        except StepError as error:  # a step may handle it
            raise StepError("was_greedy", f"{error.code}: {error}") from error
    found = await asyncio.gather(*(context.compute(double, number) for number in range(5)))
    return StepOutput("doubled", [StepItem({"of": each}) for each in found])


@pytest.fixture
async def worker(flows: FlowMaker) -> WorkflowWorker:
    made: WorkflowWorker = await flows((FLOW, {"gather": gather}))
    return made


async def test_a_step_computes_in_a_process(worker: WorkflowWorker) -> None:
    job_id = await worker.create(FLOW)
    await worker.run(job_id, "gather")
    assert [each["of"] for each in await worker.payloads(job_id, "gather")] == [0, 2, 4, 6, 8]
    # A process that dies costs an attempt.
    job_id = await worker.create(FLOW)
    ended = await worker.run(job_id, "gather", {"dies": True})
    assert ended.status.value == "complete"
    await worker.settled(ended.core_job)
    [retry] = await events(worker, ended.core_job, "retry")
    assert retry["kind"] == "compute_crashed"
    # A step that wants too much memory fails for good.
    job_id = await worker.create(FLOW)
    ended = await worker.run(job_id, "gather", {"greedy": True})
    assert ended.status.value == "failed"
    assert ended.attempt == 1
    [error] = ended.errors
    assert error["code"] == "was_greedy"
    assert error["message"].startswith("out_of_memory: the call needs more than 1024 MB")


async def test_the_end_of_a_step_ends_its_process(worker: WorkflowWorker, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    job_id = await worker.create(FLOW)
    await worker.execute(job_id, "gather", {"path": str(path)})
    pid = int(await eventually(lambda: path.exists() and path.read_text(), 30))
    core_job = (await worker.step(job_id, "gather")).core_job
    await worker.cancel(core_job)
    await eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert (await worker.step_ended(job_id, "gather")).status.value == "cancelled"
    assert (await worker.core_ended(job_id, "gather"))[b"status"] == b"canceled"
    # It ended on request and was not forced.
    assert (await worker.parsed_events(core_job))[-1][2]["stage"] == "cooperative"
