"""Computation in child processes ends with its step."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from tests.support.worker.computing import dies, double, takes_all_memory, works_for_ever
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


async def busy(worker: WorkflowWorker, path: Path) -> tuple[str, int]:
    """A job whose step computes for ever, and the id of its process."""
    job_id = await worker.create(FLOW)
    await worker.execute(job_id, "gather", {"path": str(path)})
    pid = int(await eventually(lambda: path.exists() and path.read_text(), 30))
    return job_id, pid


def gone(pid: int) -> bool:
    """True if the process does not exist, not even as a zombie."""
    return not Path(f"/proc/{pid}").exists()


async def retries(worker: WorkflowWorker, core_job: str) -> list[str]:
    """Kinds of failures after which a job was tried again."""
    events = await worker.parsed_events(core_job)
    return [data["kind"] for kind, _, data in events if kind == "retry"]


async def test_a_step_computes_in_a_process(worker: WorkflowWorker) -> None:
    job_id = await worker.create(FLOW)
    await worker.run(job_id, "gather")
    assert [each["of"] for each in await worker.payloads(job_id, "gather")] == [0, 2, 4, 6, 8]
    # A process that dies costs an attempt.
    job_id = await worker.create(FLOW)
    ended = await worker.run(job_id, "gather", {"dies": True})
    assert ended.status.value == "complete"
    await worker.settled(ended.core_job)
    assert await retries(worker, ended.core_job) == ["compute_crashed"]
    # A step that wants too much memory fails for good.
    job_id = await worker.create(FLOW)
    ended = await worker.run(job_id, "gather", {"greedy": True})
    assert ended.status.value == "failed"
    assert ended.attempt == 1
    [error] = ended.errors
    assert error["code"] == "was_greedy"
    assert error["message"].startswith("out_of_memory: the call needs more than 1024 MB")


async def test_the_end_of_a_step_ends_its_process(worker: WorkflowWorker, tmp_path: Path) -> None:
    # Canceled: it ends on request and is not forced.
    job_id, pid = await busy(worker, tmp_path / "canceled")
    core_job = (await worker.step(job_id, "gather")).core_job
    await worker.cancel(core_job)
    await eventually(lambda: gone(pid))
    assert (await worker.step_ended(job_id, "gather")).status.value == "cancelled"
    assert (await worker.core_ended(job_id, "gather"))[b"status"] == b"canceled"
    assert (await worker.parsed_events(core_job))[-1][2]["stage"] == "cooperative"
    # Superseded.
    job_id, pid = await busy(worker, tmp_path / "superseded")
    await worker.workflows.cancel(job_id, worker.once())
    assert await worker.service.runner.drop_superseded() == 1
    await eventually(lambda: gone(pid))
    await worker.all_acked()
    # Timed out.
    job_id, pid = await busy(worker, tmp_path / "timed out")
    core_job = (await worker.step(job_id, "gather")).core_job
    [run] = worker.executor.running
    run.context.set_timeout(0.0)  # the timeout expires now
    await eventually(lambda: gone(pid))

    async def reported() -> bool:
        return await retries(worker, core_job) == ["timeout"]

    await eventually(reported)


async def test_a_stopping_worker_ends_its_processes(worker: WorkflowWorker, tmp_path: Path) -> None:
    job_id, pid = await busy(worker, tmp_path / "pid")
    await worker.stop(0.1)
    await eventually(lambda: gone(pid))
    # another worker continues it
    assert (await worker.step(job_id, "gather")).status.value == "running"
