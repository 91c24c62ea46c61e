"""Repeated requests, lost replies, and keys of the wrong type."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from common.errors import StoreUnavailable
from common.features.workflows.types import (
    ExecuteCommand,
    IdempotencyClaim,
    NewItem,
    StepResult,
    WorkflowOutcome,
)
from tests.support.store.workflows import (
    ADMISSION,
    DATE,
    OK,
    REUSED,
    WorkflowHarness,
    approve,
    fresh_ids,
    hooked,
    once,
    proposals,
    reject,
)
from tests.support.waiting import eventually


async def run_job(workflow: WorkflowHarness) -> str:
    """Run a job through all kinds of operations."""
    job_id = await workflow.create(webhook=hooked())
    first = await workflow.start(job_id, "first")
    await workflow.store.progress(first, 1, 4)
    await workflow.store.put(first, "draft", b"x")
    await workflow.store.split(first, [fresh_ids().core_job], 600)
    for part in range(2):
        await workflow.store.finish_part(first, part, b"found")
    await workflow.complete(first, StepResult("one", [NewItem(b"{}")]))
    await workflow.store.fail(await workflow.start(job_id, "second"), b'[{"code":"x"}]')
    await workflow.complete(await workflow.start(job_id, "second"), proposals(2))
    await workflow.execute(job_id, "apply")
    await workflow.start(job_id, "second")
    await workflow.store.cancel(job_id, once())
    return job_id


async def test_lost_replies_do_not_change_the_result(doubting_workflow: WorkflowHarness) -> None:
    """Nor does a second call look like the repetition of a request."""
    waiting, ids = once("k", claim_ms=9000), fresh_ids()
    job_id = await doubting_workflow.create()
    outcome = await doubting_workflow.execute(job_id, "first", waiting, ids)
    assert (outcome.answer, outcome.replayed, outcome.claimed_ms_left) == (OK, False, 0)
    assert outcome.facts["execution_id"] == ids.execution
    job_id = await run_job(doubting_workflow)
    assert job_id == f"wf_{DATE}_002"
    assert await doubting_workflow.types(job_id) == [
        "job.created", "step.started", "step.progress", "step.progress", "step.progress",
        "step.completed", "step.started", "step.failed", "job.failed", "step.started",
        "step.completed", "step.started", "job.waiting_input", "step.reset", "step.started",
        "job.cancelled",
    ]  # fmt: skip
    assert await doubting_workflow.ids(job_id) == ["f_001"]
    assert len(await doubting_workflow.queued()) == 6
    assert (await doubting_workflow.step(job_id, "second"))["attempt"] == "3"
    outbox = [entry["type"] for entry in await doubting_workflow.outbox(job_id)]
    delivered = ["job.created", *["step.started", "step.completed", "step.started"]]
    assert outbox == [*delivered, "step.started", "step.completed", "step.started", "step.started"]
    assert await doubting_workflow.without_ttl() == []


async def test_the_same_key_again_is_a_repetition(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    waiting = once("k", claim_ms=5000)
    first = await workflow.execute(job_id, "first", request=waiting)
    again = await workflow.execute(job_id, "first", request=waiting)
    assert (again.answer, again.facts, again.replayed) == (OK, first.facts, True)
    assert 0 < again.claimed_ms_left <= 5000
    assert (again.status_code, again.body) == (0, b"")
    await workflow.store.store_answer(waiting, 202, b'{"success":true}')
    later = await workflow.execute(job_id, "first", request=waiting)
    assert (later.replayed, later.claimed_ms_left) == (True, 0)
    assert (later.status_code, later.body) == (202, b'{"success":true}')
    assert later.facts == first.facts
    assert 0 < await workflow.client.ttl(waiting.key) <= 600


async def test_the_answer_of_another_request_is_not_overwritten(workflow: WorkflowHarness) -> None:
    await workflow.store.store_answer(once("k"), 200, b"first")
    await workflow.store.store_answer(once("k", "other"), 200, b"second")
    found = await workflow.store.cancel("wf_20260214_001", once("k"))
    assert (found.body, found.replayed) == (b"first", True)
    other = await workflow.store.cancel("wf_20260214_001", once("k", "other"))
    assert other.answer is REUSED


async def test_a_refused_request_can_be_repeated(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    running = await workflow.start(job_id, "first")
    same = once("k")
    wanted = ExecuteCommand(job_id, "second")
    refused = await workflow.store.execute(wanted, same, fresh_ids(), ADMISSION)
    assert refused.facts["code"] == "step_in_progress"
    await workflow.complete(running)
    started = await workflow.store.execute(wanted, same, fresh_ids(), ADMISSION)
    assert (started.answer, started.replayed) == (OK, False)
    other = await workflow.create()
    assert (await workflow.execute(other, "first", request=same)).replayed  # the key is used up
    assert await workflow.statuses(other) == ["not_started"] * 5
    await workflow.client.delete(same.key)  # its TTL is over: the key is free again
    again = await workflow.make(same)
    assert (again.answer, again.replayed) == (OK, False)


@pytest.mark.real_redis
async def test_without_memory_work_only_ends(impatient_workflow: WorkflowHarness) -> None:
    workflow, store = impatient_workflow, impatient_workflow.store
    job_id, other = await workflow.create(), await workflow.create()
    running = await workflow.start(job_id, "first")
    done = await workflow.create()
    await workflow.run(done, "first", proposals(1))
    starts = [workflow.make(), workflow.execute(other, "first"), workflow.execute(done, "first")]
    async with workflow.out_of_memory():
        for start in starts:
            async with workflow.refuses(StoreUnavailable):
                await start
        assert (await store.progress(running, 1, 2)).answer is OK
        assert (await workflow.complete(running, proposals(3))).answer is OK
        assert (await store.cancel(job_id, once())).answer is OK


@pytest.mark.real_redis
async def test_hints_and_wakes_are_published(workflow: WorkflowHarness) -> None:
    hints, wakes = [], []
    for heard, channel in ((hints, workflow.jobs.hints), (wakes, workflow.keys.wake)):
        wire = workflow.backend.wire(on_message=heard.append)
        await wire.execute_command("SUBSCRIBE", channel)
    job_id = (await workflow.create(webhook=hooked())).encode()
    await eventually(lambda: set(hints) == set(wakes) == {job_id})


# -- DECIDE, EDIT and UNDO ------------------------------------------------------------------------


Call = Callable[[WorkflowHarness, str, IdempotencyClaim], Awaitable[WorkflowOutcome]]
CALLS: dict[str, Call] = {
    "decide": lambda workflow, job_id, request: workflow.decide(
        job_id, [approve("p_002")], request=request
    ),
    "edit": lambda workflow, job_id, request: workflow.edit(job_id, "p_002", 1, request),
    "undo": lambda workflow, job_id, request: workflow.undo(job_id, "undo_p_001", request),
}
each = pytest.mark.parametrize("call", CALLS)


async def reviewed(workflow: WorkflowHarness) -> str:
    """A job in review with two changes that can be undone."""
    job_id = await workflow.in_review()
    await workflow.decide(job_id, [approve("p_001")])
    await workflow.decide(job_id, [reject("p_001")])
    return job_id


@each
async def test_a_repeated_request_has_one_effect(workflow: WorkflowHarness, call: str) -> None:
    job_id = await reviewed(workflow)
    first = await CALLS[call](workflow, job_id, once("k"))
    async with workflow.unchanged():
        again = await CALLS[call](workflow, job_id, once("k"))
        assert (again.answer, again.facts, again.replayed) == (OK, first.facts, True)
        other = await CALLS[call](workflow, job_id, once("k", "another"))
        assert other.answer is REUSED


@each
async def test_a_spoilt_key_fails_before_any_write(workflow: WorkflowHarness, call: str) -> None:
    names, job_id = workflow.keys, await reviewed(workflow)
    keys = [names.undoable, names.operations, names.undo, names.states, names.items]
    outcome = await workflow.needs(
        [key(job_id) for key in (keys if call == "undo" else [*keys, names.order])],
        lambda: CALLS[call](workflow, job_id, once()),
    )
    assert outcome.answer is OK
