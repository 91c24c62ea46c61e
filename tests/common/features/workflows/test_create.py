"""CREATE: the id, the record and the first event, all or nothing; and repeated requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sluice.common.contracts.workflow.statuses import MOST_UNSENT, WORKFLOW_JOB_ID_PATTERN
from sluice.common.errors import StoreUnavailable
from sluice.common.features.workflows.types import (
    ExecuteCommand,
    IdempotencyClaim,
    NewItem,
    StepResult,
    WorkflowAnswer,
    WorkflowOutcome,
)
from sluice.common.jobs.limits import AdmissionLimits, KeyLimits
from tests.support.store.workflows import (
    ADMISSION,
    DATE,
    FIVE,
    FULL,
    OK,
    REUSED,
    WorkflowHarness,
    approve,
    fresh_ids,
    hooked,
    limit_keys,
    new_workflow,
    once,
    proposals,
    reject,
)
from tests.support.waiting import eventually


async def test_a_new_job_is_complete(workflow: WorkflowHarness) -> None:
    options = {"first": b'{"limit":3}'}
    new = new_workflow(metadata=b'{"a":[]}', tenant="acme", tail="aa", options=options)
    made = await workflow.store.create(new, once(), fresh_ids(), ADMISSION)
    assert made == (OK, {"job_id": f"wf_{DATE}_001"}, False, 0, 0, b"")
    job_id = made.facts["job_id"]
    record = await workflow.record(job_id)
    assert record["status"] == "queued"
    assert record["current_step"] == "first"
    assert record["draft_state"] == "clean"
    assert record["workflow"] == FIVE.name
    assert record["definition"].encode() == FIVE.to_json()
    assert record["metadata"] == '{"a":[]}'
    assert (record["tenant"], record["tail"]) == ("acme", "aa")
    assert record["started_ms"] == record["updated_ms"]
    assert await workflow.statuses(job_id) == ["not_started"] * 5
    assert (await workflow.step(job_id, "first"))["options"] == '{"limit":3}'
    assert await workflow.events(job_id) == [("job.created", "", {"metadata": {"a": []}})]
    assert await workflow.outbox(job_id) == []
    assert await workflow.queued() == []
    for index in (workflow.keys.index(), workflow.keys.index("acme")):
        assert await workflow.client.zrange(index, 0, -1) == [job_id.encode()]
    assert await workflow.without_ttl() == []


async def test_an_auto_advance_job_starts_at_once(workflow: WorkflowHarness) -> None:
    ids = fresh_ids()
    new = new_workflow(auto_advance=True, webhook=hooked(), tenant="acme")
    made = await workflow.store.create(new, once(), ids, ADMISSION)
    job_id = made.facts["job_id"]
    assert made.facts["started"] == {
        "step": "first", "execution_id": ids.execution, "core_job_id": ids.core_job,
    }  # fmt: skip
    assert (await workflow.record(job_id))["status"] == "running"
    assert await workflow.types(job_id) == ["job.created", "step.started"]
    assert [entry["status"] for entry in await workflow.outbox(job_id)] == ["queued", "running"]
    assert [core_id for core_id, _ in await workflow.queued()] == [ids.core_job]
    assert await workflow.running() == {job_id: f"first {ids.execution}"}
    assert await workflow.without_ttl() == []


async def test_the_webhook_gets_the_events_it_subscribed_to(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create(webhook=hooked("job.created"))
    await workflow.run(job_id, "first")
    [entry] = await workflow.outbox(job_id)
    assert entry["type"] == "job.created"
    assert (entry["seq"], entry["data"]) == (1, '{"metadata":{}}')
    assert (entry["status"], entry["current_step"]) == ("queued", "first")
    assert await workflow.client.zrange(workflow.keys.deliveries, 0, -1) == [job_id.encode()]
    job_id = await workflow.create(webhook=hooked())
    await workflow.client.zadd(workflow.keys.deliveries, {job_id: 9e12})  # a waiting retry
    await workflow.start(job_id, "first")
    assert await workflow.client.zscore(workflow.keys.deliveries, job_id) == 9e12


async def test_log_events_are_dropped_for_an_unreachable_webhook(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create(webhook=hooked("job.created", "step.started", "step.progress"))
    running = await workflow.start(job_id, "first")
    await workflow.store.progress(running, 1, 9)
    assert len(await workflow.outbox(job_id)) == 3
    first = await workflow.client.lindex(workflow.keys.outbox(job_id), 0)
    await workflow.client.rpush(workflow.keys.outbox(job_id), *[first] * (MOST_UNSENT - 3))
    await workflow.store.progress(running, 2, 9)
    assert await workflow.client.llen(workflow.keys.outbox(job_id)) == MOST_UNSENT
    assert (await workflow.types(job_id))[-1] == "step.progress"
    await workflow.complete(running)
    await workflow.start(job_id, "second")
    assert (await workflow.outbox(job_id))[-1]["type"] == "step.started"
    assert await workflow.client.llen(workflow.keys.outbox(job_id)) == MOST_UNSENT + 1


async def test_ids_are_consecutive_and_restart_each_day(workflow: WorkflowHarness) -> None:
    ids = await asyncio.gather(*(workflow.create() for _ in range(80)))
    assert sorted(ids) == [f"wf_{DATE}_{number:03d}" for number in range(1, 81)]
    await workflow.client.set(workflow.keys.sequence(DATE), 999)
    job_id = await workflow.create()
    assert job_id == f"wf_{DATE}_1000"
    assert WORKFLOW_JOB_ID_PATTERN.match(job_id)
    assert await workflow.create(date="20260215") == "wf_20260215_001"


async def test_a_lost_counter_does_not_reuse_an_id(workflow: WorkflowHarness) -> None:
    jobs = [await workflow.create() for _ in range(3)]
    await workflow.client.delete(workflow.keys.sequence(DATE))
    assert await workflow.create() == f"wf_{DATE}_004"
    await workflow.client.delete(workflow.keys.sequence(DATE), workflow.keys.job(jobs[1]))
    # The second id is free again; leftovers of the deleted job are removed.
    assert await workflow.create() == jobs[1]
    assert await workflow.types(jobs[1]) == ["job.created"]


async def test_concurrent_requests_with_one_key_create_one_job(workflow: WorkflowHarness) -> None:
    made = await asyncio.gather(*(workflow.make(once("k")) for _ in range(20)))
    assert {outcome.facts["job_id"] for outcome in made} == {f"wf_{DATE}_001"}
    assert sorted(outcome.replayed for outcome in made) == [False] + [True] * 19
    assert await workflow.create() == f"wf_{DATE}_002"  # no gap
    assert await workflow.make(once("k", "other")) == (REUSED, {}, False, 0, 0, b"")


async def test_a_full_queue_refuses_only_jobs_that_start_at_once(workflow: WorkflowHarness) -> None:
    none = AdmissionLimits("workers", 0, 600)
    async with workflow.unchanged():
        full = await workflow.make(once("k"), admission=none, auto_advance=True)
        assert (full.answer, full.facts) == (FULL, {"backlog": 0})
    assert (await workflow.make(admission=none)).answer is OK
    # A refusal is not stored.
    again = await workflow.make(once("k"), auto_advance=True)
    assert (again.answer, again.replayed) == (OK, False)


async def test_rate_and_quota_of_the_caller_are_enforced(workflow: WorkflowHarness) -> None:
    slow = ADMISSION._replace(limits=KeyLimits(*limit_keys(workflow), 60_000_000, 2, 0))
    answers = [await workflow.make(admission=slow) for _ in range(3)]
    assert [outcome.answer for outcome in answers] == [OK, OK, WorkflowAnswer.RATE]
    assert 0 < answers[2].facts["wait_ms"] <= 60_000
    limits = KeyLimits(*limit_keys(workflow), 0, 0, 1)
    limited = ADMISSION._replace(limits=limits)
    ids = fresh_ids()
    new = new_workflow(auto_advance=True)
    assert (await workflow.store.create(new, once(), ids, limited)).answer is OK
    assert await workflow.client.zrange(limits.active_key, 0, -1) == [ids.core_job.encode()]
    refused = await workflow.store.create(new, once(), fresh_ids(), limited)
    assert (refused.answer, refused.facts) == (WorkflowAnswer.QUOTA, {"active": 1})
    assert (await workflow.make(admission=limited)).answer is OK


async def test_a_key_of_the_wrong_type_leaves_nothing_behind(workflow: WorkflowHarness) -> None:
    names, same = workflow.keys, once("k")
    keys = [names.index(), names.index("acme"), names.sequence(DATE), names.running]
    made = await workflow.needs(
        [*keys, workflow.jobs.queue, same.key],
        lambda: workflow.make(same, tenant="acme", auto_advance=True),
    )
    assert made.answer is OK


async def test_expired_jobs_are_removed_from_the_index(workflow: WorkflowHarness) -> None:
    gone = await workflow.create()
    await workflow.client.delete(workflow.keys.job(gone))
    kept = [await workflow.create() for _ in range(3)]
    found = await workflow.client.zrange(workflow.keys.index(), 0, -1)
    assert sorted(name.decode() for name in found) == sorted(kept)


# -- Repeated requests, lost replies, and a lack of memory ----------------------------------------


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
