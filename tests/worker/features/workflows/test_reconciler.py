"""The reconciler: stranded steps, expired reviews, and published definitions."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from common.contracts.workflow.statuses import OnTimeout
from common.features.workflows.definitions import ReviewOptions, WorkflowDefinition
from common.features.workflows.effects import EffectStore
from common.jobs.store import WorkerIdentity
from tests.conftest import eventually
from tests.worker.features.workflows.kit import (
    FlowMaker,
    WorkflowRig,
    definition,
    nothing,
    registry_of,
)
from worker.features.workflows.context import StepContext
from worker.features.workflows.output import StepItem, StepOutput
from worker.features.workflows.split_steps import SplitStep

FLOW = definition("gather", "sort")
STEPS = {"gather": nothing, "sort": nothing}


async def stranded(rig: WorkflowRig, **core: str) -> str:
    """A step that seems to run while its core job has these fields."""
    job_id = await rig.create(FLOW)
    await rig.execute(job_id, "gather")
    core_job = (await rig.step(job_id, "gather")).core_job
    if core:
        await rig.client.hset(rig.keys.job(core_job), mapping=core)
    else:
        await rig.client.delete(rig.keys.job(core_job))
    return job_id


async def idle(flows: FlowMaker) -> WorkflowRig:
    """A worker that reconciles and takes no jobs."""
    rig: WorkflowRig = await flows((FLOW, STEPS), opened=False)
    await rig.group()
    await rig.service.start(rig.services)
    return rig


async def test_a_step_whose_core_job_ended_without_it_fails(flows: FlowMaker) -> None:
    rig = await idle(flows)
    error = json.dumps({"kind": "attempts_exhausted", "message": "given up", "attempt": 5})
    gone, done = await stranded(rig), await stranded(rig, status="done", result='"echo"')
    failed = await stranded(rig, status="error", error=error)
    canceled = await stranded(rig, status="canceled")
    alive, queued = await stranded(rig, status="running"), await stranded(rig, status="queued")
    assert await rig.service.reconciler.run_once() == 4
    for job_id in (gone, done):
        record = await rig.step(job_id, "gather")
        assert record.status.value == "failed"
        assert record.errors[0]["code"] == "step_lost"
        assert "python -m worker" in record.errors[0]["message"]
        assert (await rig.snapshot(job_id)).status.value == "failed"
    assert list((await rig.step(failed, "gather")).errors) == [
        {"code": "step_failed", "message": "given up", "kind": "attempts_exhausted"}
    ]
    assert (await rig.step(canceled, "gather")).status.value == "cancelled"
    for job_id in (alive, queued):
        assert (await rig.step(job_id, "gather")).status.value == "running"


async def test_one_worker_at_a_time(flows: FlowMaker, worker: WorkerIdentity) -> None:
    first, second = await idle(flows), await flows((FLOW, STEPS), opened=False)
    await second.service.start(second.services)
    assert await first.service.reconciler.run_once() == 0
    await stranded(first)
    assert await second.service.reconciler.run_once() == 0  # another worker has just run
    assert 0 < await first.client.pttl(first.workflows.keys.reconciler) <= 60_000
    await first.client.delete(first.workflows.keys.reconciler)
    assert await second.service.reconciler.run_once() == 1


async def test_a_deleted_workflow_is_forgotten(flows: FlowMaker) -> None:
    rig = await idle(flows)
    job_id = await stranded(rig)
    for key in await rig.client.keys(f"{rig.workflows.keys.job(job_id)}*"):
        await rig.client.delete(key)
    assert len(await rig.workflows.running()) == 1
    assert await rig.service.reconciler.run_once() == 0
    assert await rig.workflows.running() == []


async def test_a_corrupt_job_does_not_block_the_others(
    flows: FlowMaker, caplog: pytest.LogCaptureFixture
) -> None:
    rig = await idle(flows)
    broken, other = await stranded(rig), await stranded(rig)
    await rig.client.set(rig.workflows.keys.events(broken), "no stream")
    assert await rig.service.reconciler.run_once() == 1
    assert broken in caplog.text
    assert (await rig.step(other, "gather")).status.value == "failed"


async def test_a_hanging_repair_does_not_block_the_others(
    fake_flows: FlowMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = await idle(fake_flows)
    monkeypatch.setattr("worker.features.workflows.reconciler.REPAIR_TIMEOUT_S", 0.01)
    asked: list[str] = []

    async def hangs(self: EffectStore, job_id: str, *_: Any) -> list[str]:
        asked.append(job_id)
        if job_id == "wf_1":
            await asyncio.Event().wait()
        return ["undo_00000000"]

    monkeypatch.setattr(EffectStore, "revert", hangs)
    await rig.client.sadd(rig.workflows.keys.jobs_with_effects, "wf_1", "wf_2")
    assert await asyncio.wait_for(rig.service.reconciler.revert_effects(), 20) == 1
    assert asked == ["wf_1", "wf_2"]
    assert "wf_1: repair failed" in caplog.text


async def test_a_part_that_is_done_while_others_run_is_not_lost(flows: FlowMaker) -> None:
    released = asyncio.Event()

    class Parts(SplitStep):
        async def split(self, context: StepContext) -> list[Any]:
            return [0, 1, 2]

        async def run_part(self, context: StepContext, part: Any) -> Any:
            if part == 1:
                await released.wait()
            return part

        async def join(self, context: StepContext, results: list[Any]) -> StepOutput:
            return StepOutput(f"{sum(results)}")

    rig = await flows((FLOW, {"gather": Parts(), "sort": nothing}))
    job_id = await rig.create(FLOW)
    await rig.execute(job_id, "gather")

    async def two_are_done() -> bool:
        return (await rig.step(job_id, "gather")).done == 2 and await rig.pending() == 1

    await eventually(two_are_done)
    assert await rig.service.reconciler.repair_steps() == 0
    assert (await rig.step(job_id, "gather")).status.value == "running"
    # A lost part is noticed.
    [needed] = await rig.workflows.running()
    await rig.client.hset(rig.keys.job(needed.core_job), "status", "error")
    assert await rig.service.reconciler.repair_steps() == 1
    assert (await rig.step(job_id, "gather")).status.value == "failed"
    released.set()
    await rig.all_acked()
    assert (await rig.step(job_id, "gather")).status.value == "failed"


async def propose(context: StepContext) -> StepOutput:
    return StepOutput("two", [StepItem({"n": n}, "proposed", 0.5) for n in (1, 2)])


async def test_an_expired_review_is_ended(flows: FlowMaker) -> None:
    declared = definition("suggest", "review", "last")
    rig = await flows((declared, {"suggest": propose, "last": nothing}))
    review = ReviewOptions(timeout_s=0.05, on_timeout=OnTimeout.APPROVE)
    job_id = await rig.create(declared, tail="0123456789ab", auto_advance=True, review=review)
    await rig.step_ended(job_id, "review")

    async def over() -> bool:
        return bool(await rig.workflows.expired_reviews())

    await eventually(over)
    assert await rig.service.reconciler.run_once() == 1
    last = await rig.step_ended(job_id, "last")
    assert last.status.value == "complete"
    assert last.core_job.endswith("0123456789ab")
    job = await rig.snapshot(job_id)
    assert (job.status.value, job.approved) == ("completed", 2)


async def test_a_corrupt_review_does_not_block_the_others(flows: FlowMaker) -> None:
    declared = definition("suggest", "review", "last")
    rig = await flows((declared, {"suggest": propose, "last": nothing}))
    review = ReviewOptions(timeout_s=3600, on_timeout=OnTimeout.APPROVE)
    job_id = await rig.create(declared, auto_advance=True, review=review)
    await rig.step_ended(job_id, "review")
    keys = rig.workflows.keys
    broken = [f"wf_20260213_{number:03}" for number in range(1, 101)]
    for each in broken:
        await rig.client.set(keys.job(each), "spoilt")
    await rig.client.zadd(keys.reviews, {**dict.fromkeys(broken, 1), job_id: 2})
    assert await rig.service.reconciler.expire_reviews() == 0
    assert await rig.service.reconciler.expire_reviews() == 1
    assert (await rig.step_ended(job_id, "last")).status.value == "complete"
    assert await rig.client.zcard(keys.reviews) == len(broken)


async def published(rig: WorkflowRig) -> dict[bytes, bytes]:
    return await rig.client.hgetall(rig.workflows.keys.definitions)  # type: ignore[no-any-return]


async def test_definitions_are_published_and_restored(
    flows: FlowMaker, caplog: pytest.LogCaptureFixture
) -> None:
    rig = await flows((FLOW, STEPS))
    [raw] = (await published(rig)).values()
    assert WorkflowDefinition.from_json(raw) == FLOW
    await rig.client.flushall()
    await rig.service.run_once()
    assert (await published(rig)) == {b"flow_v1": raw}
    assert await rig.client.ttl(rig.workflows.keys.definitions) > 0
    caplog.clear()
    other = definition("gather", "melt")
    with caplog.at_level(logging.WARNING):
        second = await flows((other, {"gather": nothing, "melt": nothing}))
    assert "flow_v1: definition differs" in caplog.text
    await rig.service.run_once()  # and does not revert it
    assert WorkflowDefinition.from_json((await published(rig))[b"flow_v1"]) == other
    await second.service.run_once()


async def test_failures_are_left_to_the_next_round(fake_flows: FlowMaker, monkeypatch: Any) -> None:
    rig = await fake_flows((FLOW, STEPS))
    job_id = await rig.create(FLOW)

    async def broken() -> Any:
        raise RuntimeError("out of order")

    monkeypatch.setattr(rig.workflows, "running", broken)
    await rig.client.delete(rig.workflows.keys.definitions)
    await rig.service.run_once()
    assert await published(rig)  # the failure does not affect the others
    assert (await rig.run(job_id, "gather")).status.value == "complete"


async def test_the_service_runs_periodically(fake_flows: FlowMaker) -> None:
    registry = registry_of((FLOW, STEPS))
    rig = await fake_flows(registry=registry)
    service = rig.service
    service._every_s = 0.01
    await rig.client.delete(rig.workflows.keys.definitions)
    running = asyncio.create_task(service.run())

    async def is_back() -> bool:
        return bool(await published(rig))

    await eventually(is_back)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
