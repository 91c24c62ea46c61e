"""FAIL, CANCEL, PROGRESS and PUT; and writes that only the current attempt may make."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from sluice.common.errors import StoreUnavailable
from sluice.common.features.workflows.effects import TermChange, undo_token_for
from sluice.common.features.workflows.types import StepExecution, StepResult, WorkflowOutcome
from sluice.common.jobs.store import Fence
from tests.support.store.workflows import (
    ALREADY,
    LOST,
    MISSING,
    OK,
    REFUSED,
    WorkflowHarness,
    approve,
    fresh_ids,
    hooked,
    once,
)

ERRORS = b'[{"code":"step_failed","message":"no \\"luck\\""}]'


async def test_a_failure_ends_step_and_job(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create(webhook=hooked("step.failed", "job.failed"))
    running = await workflow.start(job_id, "second")
    assert (await workflow.store.fail(running, ERRORS)).answer is OK
    await workflow.step_has(job_id, "first", status="failed", errors=ERRORS.decode())
    record = await workflow.record(job_id)
    assert (record["status"], record["draft_state"]) == ("failed", "failed")
    assert record["current_step"] == "first"
    assert record["target"] == ""
    assert record["completed_ms"] != ""
    assert await workflow.running() == {}
    failed, ended = (await workflow.events(job_id))[-2:]
    errors = [{"code": "step_failed", "message": 'no "luck"'}]
    assert failed == ("step.failed", "first", {"step": "first", "errors": errors})
    assert (ended[0], list(ended[2])) == ("job.failed", ["counts"])
    delivered = [entry["type"] for entry in await workflow.outbox(job_id)]
    assert delivered == ["step.failed", "job.failed"]
    assert await workflow.without_ttl() == []
    async with workflow.unchanged():
        assert (await workflow.store.fail(running, ERRORS)).answer is ALREADY
        assert (await workflow.complete(running)).answer is ALREADY
        assert (await workflow.store.progress(running, 1, 2)).answer is ALREADY
        assert (await workflow.store.put(running, "a", b"b")).answer is ALREADY


async def test_a_cancelled_step_has_its_own_status(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    running = await workflow.start(job_id, "first")
    await workflow.store.fail(running, b"", cancelled=True)
    assert (await workflow.statuses(job_id))[0] == "cancelled"
    assert (await workflow.record(job_id))["status"] == "failed"
    assert (await workflow.events(job_id))[-2][2]["errors"] == []
    assert (await workflow.execute(job_id, "first")).answer is OK


async def test_a_failed_step_restarts_with_its_draft_state(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    await workflow.run(job_id, "first")
    await workflow.run(job_id, "second")
    await workflow.execute(job_id, "review")
    for step, state in (("apply", "saving"), ("last", "clean")):
        await workflow.store.fail(await workflow.start(job_id, step), ERRORS)
        assert (await workflow.record(job_id))["draft_state"] == "failed"
        running = await workflow.start(job_id, step)
        assert (await workflow.record(job_id))["draft_state"] == state
        await workflow.complete(running, StepResult("nothing to apply"))


async def test_stale_entries_of_running_steps_are_removed(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    running = await workflow.start(job_id, "first")
    await workflow.complete(running)
    await workflow.client.hset(workflow.keys.running, job_id, f"first {running.execution}")
    assert (await workflow.store.fail(running, ERRORS)).answer is ALREADY
    assert await workflow.running() == {}
    assert (await workflow.record(job_id))["status"] == "running"
    # A job that is missing has no running step either.
    running = await workflow.start(job_id, "first")
    await workflow.client.delete(workflow.keys.job(job_id))
    [stranded] = await workflow.store.running()
    assert stranded.running == running
    other = running._replace(execution="ex_other")
    assert (await workflow.store.fail(other, ERRORS)).answer is MISSING
    assert len(await workflow.running()) == 1
    assert (await workflow.store.fail(running, ERRORS)).answer is MISSING
    assert await workflow.running() == {}


# -- CANCEL: ends a job for good ------------------------------------------------------------------


async def test_a_new_job_can_be_cancelled_but_not_an_ended_one(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    outcome = await workflow.store.cancel(job_id, once())
    assert (outcome.answer, outcome.facts) == (OK, {"core_jobs": []})
    record = await workflow.record(job_id)
    assert (record["status"], record["draft_state"]) == ("cancelled", "clean")
    assert record["completed_ms"] != ""
    kind, _, data = (await workflow.events(job_id))[-1]
    assert (kind, list(data)) == ("job.cancelled", ["counts"])
    refused = await workflow.execute(job_id, "first")
    assert (refused.answer, refused.facts) == (REFUSED, {"code": "job_terminal"})
    # An ended or missing job cannot.
    job_id = await workflow.create()
    await workflow.store.fail(await workflow.start(job_id, "first"), b"[]")
    refused = await workflow.store.cancel(job_id, once())
    assert (refused.answer, refused.facts) == (REFUSED, {"code": "job_terminal"})
    assert (await workflow.store.cancel("wf_20260214_999", once())).answer is MISSING


async def test_a_running_step_is_cancelled_with_the_job(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    running = await workflow.start(job_id, "second")
    [(core_job, _)] = await workflow.queued()
    outcome = await workflow.store.cancel(job_id, once(), "no longer wanted")
    assert outcome.facts == {"core_jobs": [core_job]}
    assert (await workflow.statuses(job_id))[:2] == ["cancelled", "not_started"]
    await workflow.has(job_id, draft_state="dirty", target="")
    assert await workflow.running() == {}
    assert (await workflow.events(job_id))[-1][2]["reason"] == "no longer wanted"
    async with workflow.unchanged():
        assert (await workflow.complete(running)).answer is ALREADY
        assert (await workflow.store.progress(running, 1, 2)).answer is ALREADY
        again = await workflow.store.cancel(job_id, once())  # it may still run
        assert (again.answer, again.facts) == (ALREADY, outcome.facts)


async def test_a_waiting_review_is_cancelled(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review(0.5)
    assert await workflow.client.zcard(workflow.keys.reviews) == 1
    assert (await workflow.store.cancel(job_id, once())).facts == {"core_jobs": []}
    assert (await workflow.statuses(job_id))[2] == "cancelled"
    assert await workflow.client.zcard(workflow.keys.reviews) == 0
    assert await workflow.store.expired_reviews() == []
    assert (await workflow.record(job_id))["draft_state"] == "dirty"
    assert (await workflow.decide(job_id, [approve("p_001")])).answer is REFUSED
    job_id = await workflow.create()  # an unfinished save
    await workflow.run(job_id, "first")
    await workflow.run(job_id, "second")
    await workflow.start(job_id, "apply")
    await workflow.store.cancel(job_id, once())
    assert (await workflow.record(job_id))["draft_state"] == "dirty"


# -- PROGRESS and PUT: progress and data of a running step ----------------------------------------


async def test_progress_is_published_and_never_decreases(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    running = await workflow.start(job_id, "first")
    assert (await workflow.store.progress(running, 3, 10)).answer is OK
    await workflow.step_has(job_id, "first", done="3", total="10")
    kind, name, data = (await workflow.events(job_id))[-1]
    assert (kind, name) == ("step.progress", "first")
    assert data == {"step": "first", "done": 3, "total": 10}
    for done, total in ((2, 10), (3, 10), (5, 20), (0, 0), (1, 0), (-1, 5)):
        async with workflow.unchanged():
            assert (await workflow.store.progress(running, done, total)).answer is OK
    await workflow.store.progress(running, 12, 10)
    assert (await workflow.step(job_id, "first"))["done"] == "10"
    # A new execution starts at zero.
    await workflow.store.fail(running, b"[]")
    again = await workflow.start(job_id, "first")
    await workflow.step_has(job_id, "first", done="0", total="0")
    await workflow.store.progress(again, 1, 10)
    assert (await workflow.step(job_id, "first"))["done"] == "1"
    assert (await workflow.store.progress(running, 10, 10)).answer is LOST


async def test_data_is_stored_per_execution(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    running = await workflow.start(job_id, "first")
    for value in (b"old", b"\x00\xff"):
        assert (await workflow.store.put(running, "draft", value)).answer is OK
    await workflow.complete(running)
    field = f"{running.execution}:draft"
    assert await workflow.client.hget(workflow.keys.data(job_id), field) == b"\x00\xff"
    assert (await workflow.store.put(running, "draft", b"late")).answer is ALREADY
    assert await workflow.without_ttl() == []


# -- Superseded attempts of the core job, and a lack of memory ------------------------------------


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
