"""Computation in child processes ends with its step."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.worker.execution.process_pool.test_pool import (
    busy_pid,
    dies,
    double,
    gone,
    takes_all_memory,
    works_for_ever,
)
from tests.worker.features.workflows.kit import FlowMaker, WorkflowRig, definition
from worker.features.workflows.context import StepContext
from worker.features.workflows.errors import StepError
from worker.features.workflows.output import StepItem, StepOutput

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
async def rig(fake_flows: FlowMaker) -> WorkflowRig:
    made: WorkflowRig = await fake_flows((FLOW, {"gather": gather}))
    return made


async def busy(rig: WorkflowRig, tmp_path: Path) -> tuple[str, int]:
    """A job whose step computes for ever, and the id of its process."""
    job_id = await rig.create(FLOW)
    await rig.execute(job_id, "gather", {"path": str(tmp_path / "pid")})
    return job_id, await busy_pid(tmp_path / "pid")


async def timeout_reported(rig: WorkflowRig, core_job: str) -> bool:
    found = [data for kind, _, data in await rig.parsed_events(core_job) if kind == "retry"]
    return [data["kind"] for data in found] == ["timeout"]


async def test_a_step_computes_in_a_process(rig: WorkflowRig) -> None:
    job_id = await rig.create(FLOW)
    await rig.run(job_id, "gather")
    assert [each["of"] for each in await rig.payloads(job_id, "gather")] == [0, 2, 4, 6, 8]


async def test_a_process_that_dies_costs_an_attempt(rig: WorkflowRig) -> None:
    job_id = await rig.create(FLOW)
    ended = await rig.run(job_id, "gather", {"dies": True})
    assert ended.status.value == "complete"
    core_job = ended.core_job
    await rig.settled(core_job)
    [retry] = [data for kind, _, data in await rig.parsed_events(core_job) if kind == "retry"]
    assert retry["kind"] == "compute_crashed"


async def test_a_step_that_wants_too_much_memory_fails_for_good(rig: WorkflowRig) -> None:
    job_id = await rig.create(FLOW)
    ended = await rig.run(job_id, "gather", {"greedy": True})
    assert ended.status.value == "failed"
    assert ended.attempt == 1
    [error] = ended.errors
    assert error["code"] == "was_greedy"
    assert error["message"].startswith("out_of_memory: the call needs more than 1024 MB")


async def test_a_canceled_step_ends_its_process_at_once(rig: WorkflowRig, tmp_path: Path) -> None:
    job_id, pid = await busy(rig, tmp_path)
    await rig.cancel((await rig.step(job_id, "gather")).core_job)
    await eventually(lambda: gone(pid))
    assert (await rig.step_ended(job_id, "gather")).status.value == "cancelled"
    core = await rig.core_ended(job_id, "gather")
    assert core[b"status"] == b"canceled"
    # It ended on request and was not forced.
    last = (await rig.parsed_events((await rig.step(job_id, "gather")).core_job))[-1]
    assert last[2]["stage"] == "cooperative"


async def test_a_step_whose_time_is_up_ends_its_process(rig: WorkflowRig, tmp_path: Path) -> None:
    job_id, pid = await busy(rig, tmp_path)
    [run] = rig.executor.running
    run.context.set_timeout(0.0)  # the timeout expires now
    await eventually(lambda: gone(pid))
    core_job = (await rig.step(job_id, "gather")).core_job
    await eventually(lambda: timeout_reported(rig, core_job))


async def test_a_superseded_step_ends_its_process(rig: WorkflowRig, tmp_path: Path) -> None:
    job_id, pid = await busy(rig, tmp_path)
    await rig.workflows.cancel(job_id, rig.once())
    assert await rig.service.runner.drop_superseded() == 1
    await eventually(lambda: gone(pid))


async def test_a_worker_that_stops_ends_its_processes(rig: WorkflowRig, tmp_path: Path) -> None:
    job_id, pid = await busy(rig, tmp_path)
    await rig.stop(0.1)
    await eventually(lambda: gone(pid))
    # another worker continues it
    assert (await rig.step(job_id, "gather")).status.value == "running"
