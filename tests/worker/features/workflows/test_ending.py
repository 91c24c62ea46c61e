"""Steps that ended elsewhere meanwhile, and superseded attempts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common.contracts.rag import RagKeys
from common.features.workflows.effects import EffectStore, TermChange
from tests.worker.features.workflows.kit import FlowMaker, definition, nothing
from worker.features.workflows.context import StepContext
from worker.features.workflows.output import StepOutput

TWO = definition("gather", "sort")


@pytest.mark.parametrize("how", ["cancel", "fail"])
async def test_a_failed_step_cannot_succeed_later(flows: FlowMaker, how: str) -> None:
    async def gather(context: StepContext) -> StepOutput:
        effects = EffectStore(rig.client, rig.workflows)
        await effects.change_terms(context.running, keys, [TermChange("dlq", b"", b"new")])
        if how == "cancel":
            await rig.workflows.cancel(context.job_id, rig.once())
        else:
            await rig.workflows.fail(context.running, b'[{"code":"x","message":"y"}]')
        return StepOutput("too late", undo_token=context.undo_token)

    rig = await flows((TWO, {"gather": gather, "sort": nothing}))
    keys = RagKeys("notes", tag=rig.keys.tag)
    job_id = await rig.create(TWO)
    await rig.execute(job_id, "gather")
    result = await rig.result_of(job_id, "gather")
    assert result["superseded"] is True
    assert "summary" not in result
    ended = {"cancel": "cancelled", "fail": "failed"}[how]
    assert (await rig.step(job_id, "gather")).status.value == ended
    assert await rig.client.hgetall(keys.ontology) == {}


async def test_a_repeated_completion_returns_the_result(
    fake_flows: FlowMaker, monkeypatch: Any
) -> None:
    rig = await fake_flows((TWO, {"gather": nothing, "sort": nothing}))
    complete = rig.workflows.complete

    async def twice(*args: Any) -> Any:
        await complete(*args)
        return await complete(*args)

    monkeypatch.setattr(rig.workflows, "complete", twice)
    job_id = await rig.create(TWO)
    await rig.execute(job_id, "gather")
    result = await rig.result_of(job_id, "gather")
    assert (result["summary"], result["items"]) == ("nothing", 0)
    assert "superseded" not in result


async def test_a_step_that_cancels_itself_fails(flows: FlowMaker) -> None:
    async def gather(context: StepContext) -> StepOutput:
        raise asyncio.CancelledError

    rig = await flows((TWO, {"gather": gather, "sort": nothing}))
    job_id = await rig.create(TWO)
    record = await rig.run(job_id, "gather")
    assert record.status.value == "failed"
    assert record.errors[0]["code"] == "step_cancelled"
    assert (await rig.core_ended(job_id, "gather"))[b"status"] == b"error"


async def test_an_attempt_that_lost_its_lease_leaves_nothing(flows: FlowMaker) -> None:
    """For example one that was stalled while another attempt took over."""
    lost: list[str] = []

    async def gather(context: StepContext) -> StepOutput:
        if context.attempt == 1 and not lost:
            lease = context.core.fence.lease_key
            await rig.client.hset(lease, "token", "another")
            for name, call in (
                ("put", context.put("left", b"x")),
                ("progress", context.progress(1, 2)),
            ):
                try:
                    await call
                except Exception as error:
                    lost.append(f"{name} {type(error).__name__}")
            await rig.client.hset(lease, "token", context.core.fence.token)
        return StepOutput("done")

    rig = await flows((TWO, {"gather": gather, "sort": nothing}))
    job_id = await rig.create(TWO)
    assert (await rig.run(job_id, "gather")).status.value == "complete"
    assert lost == ["put StepLost", "progress StepLost"]
    assert await rig.client.hgetall(rig.workflows.keys.data(job_id)) == {}
