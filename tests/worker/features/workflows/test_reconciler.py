"""The reconciler: stranded steps, expired reviews, published definitions; echo workers and undo."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any
from unittest.mock import AsyncMock

import pytest

from sluice.common.aio import cancel
from sluice.common.contracts.workflow.statuses import OnTimeout
from sluice.common.features.workflows.definitions import ReviewOptions, WorkflowDefinition
from sluice.common.features.workflows.effects import EffectStore
from sluice.common.features.workflows.types import WorkflowAnswer, WorkflowOutcome
from sluice.worker.features.workflows import job_failure
from sluice.worker.features.workflows.context import StepContext
from sluice.worker.features.workflows.output import StepItem, StepOutput
from sluice.worker.features.workflows.split_steps import SplitStep
from sluice.worker.handlers import echo
from sluice.worker.registry import Registry
from tests.support.waiting import eventually
from tests.support.worker.workflows import (
    FlowMaker,
    WorkflowWorker,
    definition,
    nothing,
)

FLOW = definition("gather", "sort")
STEPS = {"gather": nothing, "sort": nothing}


async def stranded(worker: WorkflowWorker, **core: str) -> str:
    """A step that seems to run while its core job has these fields."""
    job_id = await worker.create(FLOW)
    await worker.execute(job_id, "gather")
    core_job = (await worker.step(job_id, "gather")).core_job
    if core:
        await worker.client.hset(worker.keys.job(core_job), mapping=core)
    else:
        await worker.client.delete(worker.keys.job(core_job))
    return job_id


async def idle(flows: FlowMaker) -> WorkflowWorker:
    """A worker that reconciles and takes no jobs."""
    worker: WorkflowWorker = await flows((FLOW, STEPS), opened=False)
    await worker.group()
    await worker.service.start(worker.services)
    return worker


async def test_a_step_whose_core_job_ended_without_it_fails(flows: FlowMaker) -> None:
    worker = await idle(flows)
    error = json.dumps({"kind": "attempts_exhausted", "message": "given up", "attempt": 5})
    gone, done = await stranded(worker), await stranded(worker, status="done", result='"echo"')
    failed = await stranded(worker, status="error", error=error)
    canceled = await stranded(worker, status="canceled")
    alive = [await stranded(worker, status=status) for status in ("running", "queued")]
    assert await worker.service.reconciler.run_once() == 4
    for job_id in (gone, done):
        record = await worker.step(job_id, "gather")
        assert record.status.value == "failed"
        assert record.errors[0]["code"] == "step_lost"
        assert "python -m sluice.worker" in record.errors[0]["message"]
        assert (await worker.snapshot(job_id)).status.value == "failed"
    assert list((await worker.step(failed, "gather")).errors) == [
        {"code": "step_failed", "message": "given up", "kind": "attempts_exhausted"}
    ]
    assert (await worker.step(canceled, "gather")).status.value == "cancelled"
    for job_id in alive:
        assert (await worker.step(job_id, "gather")).status.value == "running"


@pytest.mark.fakeredis_only
async def test_one_worker_at_a_time(flows: FlowMaker) -> None:
    first, second = await idle(flows), await flows((FLOW, STEPS), opened=False)
    await second.service.start(second.services)
    assert await first.service.reconciler.run_once() == 0
    job_id = await stranded(first)
    assert await second.service.reconciler.run_once() == 0  # another worker has just run
    assert 0 < await first.client.pttl(first.workflows.keys.reconciler) <= 60_000
    await first.client.delete(first.workflows.keys.reconciler)
    assert await second.service.reconciler.run_once() == 1
    # A deleted workflow is forgotten.
    job_id = await stranded(first)
    for key in await first.client.keys(f"{first.workflows.keys.job(job_id)}*"):
        await first.client.delete(key)
    assert len(await first.workflows.running()) == 1
    assert await first.service.reconciler.repair_steps() == 0
    assert await first.workflows.running() == []


@pytest.mark.fakeredis_only
async def test_a_corrupt_job_does_not_block_the_others(
    flows: FlowMaker, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await idle(flows)
    broken, other = await stranded(worker), await stranded(worker)
    await worker.client.set(worker.workflows.keys.events(broken), "no stream")
    assert await worker.service.reconciler.run_once() == 1
    assert broken in caplog.text
    assert (await worker.step(other, "gather")).status.value == "failed"


@pytest.mark.fakeredis_only
async def test_a_hanging_repair_does_not_block_the_others(
    flows: FlowMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await idle(flows)
    monkeypatch.setattr("sluice.worker.features.workflows.reconciler.REPAIR_TIMEOUT_S", 0.01)
    asked: list[str] = []

    async def hangs(self: EffectStore, job_id: str, *_: Any) -> list[str]:
        asked.append(job_id)
        if job_id == "wf_1":
            await asyncio.Event().wait()
        return ["undo_00000000"]

    monkeypatch.setattr(EffectStore, "revert", hangs)
    await worker.client.sadd(worker.workflows.keys.jobs_with_effects, "wf_1", "wf_2")
    assert await asyncio.wait_for(worker.service.reconciler.revert_effects(), 20) == 1
    assert asked == ["wf_1", "wf_2"]
    assert "wf_1: repair failed" in caplog.text


@pytest.mark.fakeredis_only
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

    worker = await flows((FLOW, {"gather": Parts(), "sort": nothing}))
    job_id = await worker.create(FLOW)
    await worker.execute(job_id, "gather")

    async def two_are_done() -> bool:
        return (await worker.step(job_id, "gather")).done == 2 and await worker.pending() == 1

    await eventually(two_are_done)
    assert await worker.service.reconciler.repair_steps() == 0
    assert (await worker.step(job_id, "gather")).status.value == "running"
    # A lost part is noticed.
    [needed] = await worker.workflows.running()
    await worker.client.hset(worker.keys.job(needed.core_job), "status", "error")
    assert await worker.service.reconciler.repair_steps() == 1
    assert (await worker.step(job_id, "gather")).status.value == "failed"
    released.set()
    await worker.all_acked()
    assert (await worker.step(job_id, "gather")).status.value == "failed"


async def propose(context: StepContext) -> StepOutput:
    return StepOutput("two", [StepItem({"n": n}, "proposed", 0.5) for n in (1, 2)])


async def reviewing(flows: FlowMaker, timeout_s: float) -> tuple[WorkflowWorker, str]:
    """A job that waits for its review."""
    declared = definition("suggest", "review", "last")
    worker = await flows((declared, {"suggest": propose, "last": nothing}))
    review = ReviewOptions(timeout_s=timeout_s, on_timeout=OnTimeout.APPROVE)
    job_id = await worker.create(declared, tail="0123456789ab", auto_advance=True, review=review)
    await worker.step_ended(job_id, "review")
    return worker, job_id


async def test_an_expired_review_is_ended(flows: FlowMaker) -> None:
    worker, job_id = await reviewing(flows, 0.05)

    async def over() -> bool:
        return bool(await worker.workflows.expired_reviews())

    await eventually(over)
    assert await worker.service.reconciler.run_once() == 1
    last = await worker.step_ended(job_id, "last")
    assert last.status.value == "complete"
    assert last.core_job.endswith("0123456789ab")
    job = await worker.snapshot(job_id)
    assert (job.status.value, job.approved) == ("completed", 2)


@pytest.mark.fakeredis_only
async def test_a_corrupt_review_does_not_block_the_others(flows: FlowMaker) -> None:
    worker, job_id = await reviewing(flows, 3600)
    keys = worker.workflows.keys
    broken = [f"wf_20260213_{number:03}" for number in range(1, 101)]
    for each in broken:
        await worker.client.set(keys.job(each), "spoilt")
    await worker.client.zadd(keys.reviews, {**dict.fromkeys(broken, 1), job_id: 2})
    assert await worker.service.reconciler.expire_reviews() == 0
    assert await worker.service.reconciler.expire_reviews() == 1
    assert (await worker.step_ended(job_id, "last")).status.value == "complete"
    assert await worker.client.zcard(keys.reviews) == len(broken)


async def published(worker: WorkflowWorker) -> dict[bytes, bytes]:
    return await worker.client.hgetall(worker.workflows.keys.definitions)  # type: ignore[no-any-return]


@pytest.mark.fakeredis_only
async def test_definitions_are_published_and_restored(
    flows: FlowMaker, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await flows((FLOW, STEPS))
    [raw] = (await published(worker)).values()
    assert WorkflowDefinition.from_json(raw) == FLOW
    await worker.client.flushall()
    await worker.service.run_once()
    assert (await published(worker)) == {b"flow_v1": raw}
    assert await worker.client.ttl(worker.workflows.keys.definitions) > 0
    caplog.clear()
    other = definition("gather", "melt")
    with caplog.at_level(logging.WARNING):
        second = await flows((other, {"gather": nothing, "melt": nothing}))
    assert "flow_v1: definition differs" in caplog.text
    await worker.service.run_once()  # and does not revert it
    assert WorkflowDefinition.from_json((await published(worker))[b"flow_v1"]) == other
    await second.service.run_once()


@pytest.mark.fakeredis_only
async def test_failures_are_left_to_the_next_round(flows: FlowMaker, monkeypatch: Any) -> None:
    worker = await flows((FLOW, STEPS))
    job_id = await worker.create(FLOW)

    async def broken() -> Any:
        raise RuntimeError("out of order")

    async def is_back() -> bool:
        return bool(await published(worker))

    monkeypatch.setattr(worker.workflows, "running", broken)
    monkeypatch.setattr(worker.service, "_every_s", 0.01)
    await worker.client.delete(worker.workflows.keys.definitions)
    running = asyncio.create_task(worker.service.run())
    await eventually(is_back)  # the failure does not affect the others
    await cancel(running)
    assert (await worker.run(job_id, "gather")).status.value == "complete"


UNDO: dict[str, Any] = {"workflow_job_id": "wf_20260214_001", "undo_token": "undo_0a1b2c3d"}


@pytest.mark.fakeredis_only
async def test_an_echo_worker_fails_a_step_with_a_remedy(flows: FlowMaker) -> None:
    registry = Registry()  # as in `python -m sluice.worker.echo_worker`
    echo.register(registry)
    job_failure.register(registry)
    worker = await flows(registry=registry)
    job_id = await worker.create(FLOW)
    ended = await worker.run(job_id, "gather")
    assert ended.status.value == "failed"
    [error] = ended.errors
    assert error["code"] == "step_failed"
    assert "`python -m sluice.worker`" in error["message"]
    [other] = await worker.post(task="tool", payload=b'{"tool":"roll"}')
    assert await worker.settled(other) == b"done"
    core_job = await worker.run_tool("undo", UNDO, b"error")
    assert (await worker.error(core_job))["kind"] == "step_failed"


@pytest.mark.fakeredis_only
async def test_an_undo_returns_its_outcome(flows: FlowMaker, monkeypatch: Any) -> None:
    worker = await flows((FLOW, STEPS))
    job_id = await worker.create(FLOW)

    async def undone(**changes: Any) -> Any:
        return await worker.result(await worker.run_tool("undo", {**UNDO, **changes}))

    assert (await undone())["answer"] == "missing"
    assert (await undone(workflow_job_id=job_id))["answer"] == "missing"
    wrong: list[dict[str, Any]]
    wrong = [{"workflow_job_id": "job:1"}, {"undo_token": 3}, {"undo_token": ""}]
    for args in ({}, *({**UNDO, **each} for each in wrong)):
        core_job = await worker.run_tool("undo", args, b"error")
        assert (await worker.error(core_job))["kind"] == "invalid_payload"
    refused = {"code": "undo_conflict", "items": ["p_001"]}
    for answer, facts, result in (
        (WorkflowAnswer.OK, {"undone": ["p_001"]}, {"undone": ["p_001"]}),
        (WorkflowAnswer.ALREADY, {"undone": {}}, {}),
        (WorkflowAnswer.REFUSED, refused, refused),
    ):
        undo = AsyncMock(return_value=WorkflowOutcome(answer, facts))
        monkeypatch.setattr(worker.workflows, "undo_with_effects", undo)
        empty = {"undone": [], "items": [], "code": None}
        assert await undone() == {"answer": answer.value, **empty, **result}
        undo.assert_awaited_once_with(*UNDO.values())
