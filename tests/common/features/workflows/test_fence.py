"""Writes that only the current attempt of the core job may make; and a lack of memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from common.errors import StoreUnavailable
from common.features.workflows.effects import TermChange, undo_token_for
from common.features.workflows.types import StepExecution, StepResult, WorkflowOutcome
from common.jobs.store import Fence
from tests.support.store.workflows import (
    LOST,
    OK,
    REFUSED,
    WorkflowHarness,
    fresh_ids,
)

TERM = [TermChange("dlq", b"", b"new")]
CALLS: dict[str, Callable[[WorkflowHarness, StepExecution], Awaitable[WorkflowOutcome]]] = {
    "progress": lambda workflow, running: workflow.store.progress(running, 1, 2),
    "put": lambda workflow, running: workflow.store.put(running, "x", b"y"),
    "split": lambda workflow, running: workflow.store.split(running, [fresh_ids().core_job], 600),
    "complete": lambda workflow, running: workflow.complete(running),
    "apply": lambda workflow, running: workflow.effects.change_terms(running, workflow.rag, TERM),
}


async def held(workflow: WorkflowHarness) -> tuple[StepExecution, StepExecution]:
    """A running step: as its superseded attempt has it, and as the current one does."""
    running = await workflow.start(await workflow.create(), "first")
    [(core_job, _)] = await workflow.queued()
    lease = workflow.jobs.lease(core_job)
    await workflow.client.hset(lease, mapping={"attempt": "2", "token": "second"})
    first, second = (
        running._replace(fence=Fence(lease, attempt, token))
        for attempt, token in ((1, "first"), (2, "second"))
    )
    return first, second


@pytest.mark.parametrize("call", CALLS)
async def test_a_superseded_attempt_writes_nothing(workflow: WorkflowHarness, call: str) -> None:
    stale, current = await held(workflow)
    before = await workflow.snapshot()
    assert (await CALLS[call](workflow, stale)).answer is LOST
    assert await workflow.snapshot() == before
    assert (await CALLS[call](workflow, current)).answer is OK
    assert await workflow.snapshot() != before


async def test_a_part_of_a_superseded_attempt_is_refused(workflow: WorkflowHarness) -> None:
    stale, current = await held(workflow)
    await workflow.store.split(current, [fresh_ids().core_job], 600)
    async with workflow.unchanged():
        assert (await workflow.store.finish_part(stale, 0, b"x")).answer is LOST
    assert (await workflow.store.finish_part(current, 0, b"x")).answer is OK
    # Without a lease the attempt is lost.
    assert current.fence is not None
    await workflow.client.delete(current.fence.lease_key)
    assert (await workflow.complete(current)).answer is LOST


async def test_a_superseded_attempt_reverts_nothing(workflow: WorkflowHarness) -> None:
    stale, current = await held(workflow)
    effects = workflow.effects
    await effects.change_terms(current, workflow.rag, TERM)
    assert await effects.revert(stale.job_id, stale) == []
    assert await workflow.client.hget(workflow.rag.ontology, "dlq") == b"new"
    assert await effects.revert(stale.job_id, current) == [undo_token_for(stale.execution)]
    assert await workflow.client.hget(workflow.rag.ontology, "dlq") is None


@pytest.mark.parametrize("named", [True, False])
async def test_reverted_effects_prevent_completion(workflow: WorkflowHarness, named: bool) -> None:
    _, current = await held(workflow)
    effects, token = workflow.effects, undo_token_for(current.execution)
    await effects.change_terms(current, workflow.rag, TERM)
    await effects.revert(current.job_id, current)
    async with workflow.unchanged():
        refused = await workflow.complete(
            current, StepResult("x", undo_token=token if named else "")
        )
        assert (refused.answer, refused.facts) == (REFUSED, {"code": "step_lost"})
    await effects.change_terms(current, workflow.rag, TERM)
    assert (await workflow.complete(current, StepResult("x", undo_token=token))).answer is OK


@pytest.mark.real_redis
@pytest.mark.parametrize("call", ["put", "split"])
async def test_some_operations_need_memory(impatient_workflow: WorkflowHarness, call: str) -> None:
    workflow = impatient_workflow
    running = await workflow.start(await workflow.create(), "first")
    async with workflow.out_of_memory(), workflow.refuses(StoreUnavailable):
        await CALLS[call](workflow, running)
    assert (await CALLS[call](workflow, running)).answer is OK


@pytest.mark.real_redis
async def test_effects_are_reverted_without_memory(impatient_workflow: WorkflowHarness) -> None:
    workflow = impatient_workflow
    running = await workflow.start(await workflow.create(), "first")
    await workflow.client.hset(workflow.rag.ontology, "dlq", "old")
    await workflow.effects.change_terms(running, workflow.rag, [TermChange("dlq", b"old", b"new")])
    async with workflow.out_of_memory():
        assert (await workflow.store.fail(running, b"[]")).answer is OK
        reverted = await workflow.effects.revert(running.job_id)
    assert reverted == [undo_token_for(running.execution)]
    assert await workflow.client.hget(workflow.rag.ontology, "dlq") == b"old"
