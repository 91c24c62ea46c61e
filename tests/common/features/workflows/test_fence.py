"""Writes that only the current attempt of the core job may make; and a lack of memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from common.contracts.jobs import JobKeys
from common.errors import StoreUnavailable
from common.features.workflows.effects import EffectStore, TermChange, undo_token_for
from common.features.workflows.types import (
    StepExecution,
    StepResult,
    WorkflowAnswer,
    WorkflowOutcome,
)
from common.jobs.store import Fence
from common.redis.batching import ScriptBatcher
from tests.common.features.workflows.kit import Flow, fresh_ids
from tests.support.backends import Backend

OK, ALREADY, LOST = WorkflowAnswer.OK, WorkflowAnswer.ALREADY, WorkflowAnswer.LOST
TERM = [TermChange("dlq", b"", b"new")]
CALLS: dict[str, Callable[[Flow, StepExecution], Awaitable[WorkflowOutcome]]] = {
    "progress": lambda flow, running: flow.store.progress(running, 1, 2),
    "put": lambda flow, running: flow.store.put(running, "x", b"y"),
    "split": lambda flow, running: flow.store.split(running, [fresh_ids().core_job], 600),
    "complete": lambda flow, running: flow.complete(running),
    "apply": lambda flow, running: effects_of(flow).change_terms(running, flow.rag, TERM),
}


def effects_of(flow: Flow) -> EffectStore:
    return EffectStore(flow.client, flow.store)


async def held(flow: Flow) -> tuple[StepExecution, StepExecution]:
    """A running step: as its superseded attempt has it, and as the current one does."""
    running = await flow.start(await flow.create(), "first")
    [(core_job, _)] = await flow.queued()
    lease = flow.jobs.lease(core_job)
    await flow.client.hset(lease, mapping={"attempt": "2", "token": "second"})
    first, second = (
        running._replace(fence=Fence(lease, attempt, token))
        for attempt, token in ((1, "first"), (2, "second"))
    )
    return first, second


@pytest.mark.parametrize("call", CALLS)
async def test_a_superseded_attempt_writes_nothing(flow: Flow, call: str) -> None:
    stale, current = await held(flow)
    before = await flow.snapshot()
    assert (await CALLS[call](flow, stale)).answer is LOST
    assert await flow.snapshot() == before
    assert (await CALLS[call](flow, current)).answer is OK
    assert await flow.snapshot() != before


async def test_a_part_of_a_superseded_attempt_is_refused(flow: Flow) -> None:
    stale, current = await held(flow)
    await flow.store.split(current, [fresh_ids().core_job], 600)
    before = await flow.snapshot()
    assert (await flow.store.finish_part(stale, 0, b"x")).answer is LOST
    assert await flow.snapshot() == before
    assert (await flow.store.finish_part(current, 0, b"x")).answer is OK


async def test_an_attempt_without_a_lease_is_lost(flow: Flow) -> None:
    _, current = await held(flow)
    assert current.fence is not None
    await flow.client.delete(current.fence.lease_key)
    assert (await flow.complete(current)).answer is LOST


async def test_a_superseded_attempt_reverts_nothing(flow: Flow) -> None:
    stale, current = await held(flow)
    effects = effects_of(flow)
    await effects.change_terms(current, flow.rag, TERM)
    assert await effects.revert(stale.job_id, stale) == []
    assert await flow.client.hget(flow.rag.ontology, "dlq") == b"new"
    assert await effects.revert(stale.job_id, current) == [undo_token_for(stale.execution)]
    assert await flow.client.hget(flow.rag.ontology, "dlq") is None


@pytest.mark.parametrize("named", [True, False])
async def test_a_step_with_reverted_effects_cannot_complete(flow: Flow, named: bool) -> None:
    _, current = await held(flow)
    effects, token = effects_of(flow), undo_token_for(current.execution)
    await effects.change_terms(current, flow.rag, TERM)
    await effects.revert(current.job_id, current)
    before = await flow.snapshot()
    refused = await flow.complete(current, StepResult("x", undo_token=token if named else ""))
    assert (refused.answer, refused.facts) == (WorkflowAnswer.REFUSED, {"code": "step_lost"})
    assert await flow.snapshot() == before
    await effects.change_terms(current, flow.rag, TERM)
    assert (await flow.complete(current, StepResult("x", undo_token=token))).answer is OK


# -- memory ------------------------------------------------------------------------------------


class Impatient(ScriptBatcher):
    """A batcher with a short retry time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "retry_for_s": 0.2})


@pytest.fixture
async def impatient(real_backend: Backend, keys: JobKeys) -> AsyncIterator[Flow]:
    """A flow that fails soon, on real servers only; their memory limit is removed at the end."""
    flow = Flow(real_backend, keys, Impatient)
    yield flow
    await flow.client.config_set("maxmemory", "0")
    await flow.close()


@pytest.mark.parametrize("call", ["put", "split"])
async def test_operations_that_need_memory_wait_for_it(impatient: Flow, call: str) -> None:
    flow = impatient
    running = await flow.start(await flow.create(), "first")
    before = await flow.snapshot()
    await flow.client.config_set("maxmemory", "1")
    with pytest.raises(StoreUnavailable):
        await CALLS[call](flow, running)
    await flow.client.config_set("maxmemory", "0")
    assert await flow.snapshot() == before
    assert (await CALLS[call](flow, running)).answer is OK


async def test_effects_are_reverted_without_memory(impatient: Flow) -> None:
    flow = impatient
    running = await flow.start(await flow.create(), "first")
    await flow.client.hset(flow.rag.ontology, "dlq", "old")
    await effects_of(flow).change_terms(running, flow.rag, [TermChange("dlq", b"old", b"new")])
    await flow.client.config_set("maxmemory", "1")
    assert (await flow.store.fail(running, b"[]")).answer is OK
    assert await effects_of(flow).revert(running.job_id) == [undo_token_for(running.execution)]
    assert await flow.client.hget(flow.rag.ontology, "dlq") == b"old"
