"""EXECUTE: which step starts, which steps run before it, refusals and resets."""

from __future__ import annotations

import asyncio

from sluice.common import codec
from sluice.common.contracts import values_of
from sluice.common.contracts.jobs import JobField
from sluice.common.features.workflows.types import NewItem, StepResult, WorkflowAnswer
from sluice.common.jobs.limits import AdmissionLimits, KeyLimits
from tests.support.store.workflows import (
    ADMISSION,
    FIVE,
    FULL,
    LOST,
    MISSING,
    OK,
    REFUSED,
    WorkflowHarness,
    fresh_ids,
    limit_keys,
    once,
    proposals,
)


async def test_a_step_is_an_ordinary_core_job(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create(tenant="acme")
    ids = fresh_ids()
    outcome = await workflow.execute(job_id, "first", ids=ids, options=b'{"a":1}')
    assert outcome.facts == {
        "step": "first", "execution_id": ids.execution, "core_job_id": ids.core_job,
        "started": True,
    }  # fmt: skip
    step = await workflow.step(job_id, "first")
    assert (step["status"], step["attempt"], step["options"]) == ("running", "1", '{"a":1}')
    assert (step["execution"], step["core_job"]) == tuple(ids)
    await workflow.has(job_id, status="running", current_step="first", draft_state="dirty")
    assert await workflow.running() == {job_id: f"first {ids.execution}"}

    core = await workflow.client.hgetall(workflow.jobs.job(ids.core_job))
    assert {name.decode() for name in core} == set(values_of(JobField))
    arguments = {"workflow_job_id": job_id, "step": "first", "execution_id": ids.execution}
    payload = codec.loads(core[b"payload"])
    assert payload == {"tool": "workflow.step", "args": arguments}
    assert (core[b"task"], core[b"status"], core[b"ttl_s"]) == (b"tool", b"queued", b"600")
    lease = await workflow.client.hgetall(workflow.jobs.lease(ids.core_job))
    assert (lease[b"attempt"], lease[b"max_attempts"]) == (b"0", b"3")
    assert codec.loads(lease[b"options"]) == {"tenant": "acme", "timeout_s": 12.5}
    [(_, event)] = await workflow.client.xrange(workflow.jobs.events(ids.core_job))
    assert (event[b"type"], event[b"step"]) == (b"queued", b"gateway.enqueue")
    assert await workflow.queued() == [(ids.core_job, arguments)]
    for key in (workflow.jobs.job, workflow.jobs.events, workflow.jobs.lease):
        assert 0 < await workflow.client.ttl(key(ids.core_job)) <= 600
    kind, _, data = (await workflow.events(job_id))[-1]
    assert kind == "step.started"
    assert data == {
        "step": "first", "execution_id": ids.execution, "core_job_id": ids.core_job, "attempt": 1,
    }  # fmt: skip
    assert await workflow.without_ttl() == []


async def test_earlier_steps_run_first_and_in_order(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    running = await workflow.start(job_id, "second")
    assert running.step == "first"
    outcome = await workflow.complete(running)
    running = workflow.started(job_id, outcome)
    assert running.step == "second"
    core_id, _ = (await workflow.queued())[-1]  # it has no options
    assert await workflow.client.hgetall(workflow.jobs.lease(core_id)) == {b"attempt": b"0"}
    assert "started" not in (await workflow.complete(running)).facts
    assert (await workflow.record(job_id))["target"] == ""
    assert await workflow.statuses(job_id) == ["complete", "complete"] + ["not_started"] * 3


async def test_a_strict_request_runs_no_earlier_steps(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    async with workflow.unchanged():
        refused = await workflow.execute(job_id, "second", strict=True)
        assert (refused.answer, refused.facts) == (
            REFUSED, {"code": "step_out_of_order", "step": "first"},
        )  # fmt: skip
        assert (await workflow.execute("wf_20260214_999", "first")).answer is MISSING
        unknown = await workflow.execute(job_id, "third")
        assert (unknown.answer, unknown.facts) == (REFUSED, {"code": "unknown_step"})
    assert (await workflow.execute(job_id, "first", strict=True)).answer is OK


async def test_one_step_runs_at_a_time(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    outcomes = await asyncio.gather(*(workflow.execute(job_id, "first") for _ in range(20)))
    [started] = [outcome for outcome in outcomes if outcome.answer is OK]
    for outcome in outcomes:
        if outcome is not started:
            assert outcome.facts == {
                "code": "step_in_progress", "step": "first",
                "execution_id": started.facts["execution_id"],
            }  # fmt: skip
    assert len(await workflow.queued()) == 1


async def test_a_review_is_never_skipped(workflow: WorkflowHarness) -> None:
    job_id = await workflow.with_proposals(0.5, 0.5)
    required = {"code": "review_required", "step": "review", "pending": 2}
    refused = await workflow.execute(job_id, "apply")
    assert (refused.answer, refused.facts) == (REFUSED, required)
    await workflow.has(job_id, status="waiting_input", current_step="review", target="")
    before = await workflow.snapshot()
    assert (await workflow.execute(job_id, "last")).facts == required
    assert await workflow.snapshot() == before  # it was waiting already
    # Executing the review itself opens it.
    outcome = await workflow.execute(await workflow.with_proposals(), "review")
    assert outcome.answer is OK
    assert outcome.facts == {
        "step": "review", "started": False, "waiting": True, "completed": False, "pending": 3,
    }  # fmt: skip


async def test_a_target_beyond_a_review_runs_up_to_it(workflow: WorkflowHarness) -> None:
    for pending in (1, 0):
        job_id = await workflow.create()
        running = await workflow.start(job_id, "apply")
        running = workflow.started(job_id, await workflow.complete(running))
        assert running.step == "second"
        outcome = await workflow.complete(running, proposals(pending))
        record = await workflow.record(job_id)
        if pending:
            assert "started" not in outcome.facts
            assert (record["status"], record["target"]) == ("waiting_input", "")
        else:  # a review with nothing to decide does not wait
            assert workflow.started(job_id, outcome).step == "apply"
            assert record["draft_state"] == "saving"


async def test_executing_a_step_again_resets_later_steps(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    things = StepResult("two", [NewItem(b"{}"), NewItem(b"{}")])
    first = await workflow.start(job_id, "first")
    await workflow.store.put(first, "left", b"for later")
    await workflow.complete(first, things)
    await workflow.run(job_id, "second", proposals(3))
    assert await workflow.ids(job_id) == ["f_001", "f_002", "p_001", "p_002", "p_003"]
    again = await workflow.start(job_id, "first")
    assert await workflow.statuses(job_id) == ["running"] + ["not_started"] * 4
    assert await workflow.ids(job_id) == []
    assert await workflow.states(job_id) == {}
    await workflow.has(job_id, proposed="0")
    assert (await workflow.step(job_id, "first"))["attempt"] == "2"
    assert await workflow.client.exists(workflow.keys.data(job_id)) == 0
    assert (await workflow.types(job_id))[-2:] == ["step.reset", "step.started"]
    # The replaced execution can no longer write.
    assert (await workflow.complete(first, things)).answer is LOST
    await workflow.complete(again, things)
    assert await workflow.ids(job_id) == ["f_001", "f_002"]
    order = await workflow.client.zrange(workflow.keys.order(job_id), 0, -1, withscores=True)
    assert [score for _, score in order] == [6, 7]  # an earlier cursor remains valid
    # A reset review does not wait any more.
    job_id = await workflow.in_review(0.5)
    assert await workflow.client.zcard(workflow.keys.reviews) == 1
    await workflow.start(job_id, "second")
    assert await workflow.client.zcard(workflow.keys.reviews) == 0
    assert (await workflow.record(job_id))["status"] == "running"
    assert await workflow.statuses(job_id) == ["complete", "running"] + ["not_started"] * 3


async def test_decisions_are_not_discarded_by_mistake(workflow: WorkflowHarness) -> None:
    job_id = await workflow.with_proposals(0.5, 0.5)
    states = workflow.keys.states(job_id)
    await workflow.client.hset(states, "p_002", "approved 2 0 0.500000")
    async with workflow.unchanged():
        refused = await workflow.execute(job_id, "second")
        assert refused.facts == {
            "code": "would_discard_decisions", "step": "second", "items": ["p_002"],
        }  # fmt: skip
    await workflow.client.hset(states, "p_002", "proposed 2 1 0.500000")  # edited
    assert (await workflow.execute(job_id, "first")).facts["code"] == "would_discard_decisions"
    assert (await workflow.execute(job_id, "first", discard_decisions=True)).answer is OK


async def test_a_failed_step_resumes_without_the_earlier_steps(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    await workflow.run(job_id, "first")
    failing = await workflow.start(job_id, "second")
    await workflow.store.put(failing, "half", b"done")
    await workflow.store.fail(failing, b'[{"code":"x"}]')
    resumed = await workflow.start(job_id, "second")
    assert resumed.execution != failing.execution
    await workflow.has(job_id, status="running", draft_state="dirty", completed_ms="")
    await workflow.step_has(job_id, "second", attempt="2", errors="")
    assert await workflow.client.exists(workflow.keys.data(job_id)) == 0
    assert "step.reset" not in await workflow.types(job_id)
    assert (await workflow.step(job_id, "first"))["attempt"] == "1"


async def test_options_apply_until_they_are_replaced(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create(options={"first": b'{"a":1}'})
    await workflow.run(job_id, "first")
    assert (await workflow.step(job_id, "first"))["options"] == '{"a":1}'
    await workflow.start(job_id, "first", options=b"{}")
    assert (await workflow.step(job_id, "first"))["options"] == "{}"


async def test_a_full_queue_starts_nothing(workflow: WorkflowHarness) -> None:
    full = AdmissionLimits("workers", 0, 600)
    job_id = await workflow.create()
    async with workflow.unchanged():
        assert (await workflow.execute(job_id, "first", admission=full)).answer is FULL
    await workflow.run(job_id, "first")
    await workflow.run(job_id, "second")
    async with workflow.unchanged():  # nor after a review
        assert (await workflow.execute(job_id, "apply", admission=full)).answer is FULL
    # The review alone is accepted, since it starts nothing.
    outcome = await workflow.execute(job_id, "review", admission=full)
    assert (outcome.answer, outcome.facts["completed"]) == (OK, True)


async def test_items_without_a_state_do_not_stop_a_step(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    await workflow.run(job_id, "first", proposals(1))
    await workflow.run(job_id, "second", proposals(3))
    await workflow.client.hdel(workflow.keys.states(job_id), "p_001")
    await workflow.client.hset(workflow.keys.states(job_id), "f_001", "spoilt")
    running = await workflow.start(job_id, "first")
    assert await workflow.ids(job_id) == []
    assert (await workflow.statuses(job_id))[:2] == ["running", "not_started"]
    assert (await workflow.complete(running)).answer is OK


async def test_limits_of_the_caller_are_enforced(workflow: WorkflowHarness) -> None:
    limits = KeyLimits(*limit_keys(workflow), 60_000_000, 2, 2)
    limited, ids = ADMISSION._replace(limits=limits), fresh_ids()
    answers = [
        await workflow.execute(await workflow.create(), "first", ids=each, admission=limited)
        for each in (ids, fresh_ids(), fresh_ids())
    ]
    assert [outcome.answer for outcome in answers] == [OK, OK, WorkflowAnswer.RATE]
    assert await workflow.client.zscore(limits.active_key, ids.core_job) is not None
    await workflow.client.delete(limits.rate_key)
    outcome = await workflow.execute(await workflow.create(), "first", admission=limited)
    assert (outcome.answer, outcome.facts) == (WorkflowAnswer.QUOTA, {"active": 2})


async def test_a_spoilt_key_fails_before_any_write(workflow: WorkflowHarness) -> None:
    names, ids, same = workflow.keys, fresh_ids(), once("k")
    job_id = await workflow.create()
    own = "items states order undo operations data parts outbox steps events"
    keys = [getattr(names, part)(job_id) for part in own.split()]
    keys += [names.running, names.step_order(job_id, FIVE.steps[1].name)]
    keys += [workflow.jobs.queue, workflow.jobs.events(ids.core_job)]
    outcome = await workflow.needs(
        keys, lambda: workflow.execute(job_id, "first", request=same, ids=ids)
    )
    assert outcome.answer is OK


async def test_effects_of_removed_items_can_still_be_undone(workflow: WorkflowHarness) -> None:
    job_id = await workflow.with_proposals(0.5, 0.5)
    await workflow.approve_all(job_id)
    await workflow.execute(job_id, "review")
    running = await workflow.start(job_id, "apply")
    token = "undo_0a1b2c3d"
    operations = workflow.keys.operations(job_id)
    await workflow.client.hset(operations, token, b'{"effects":{"terms":{"a":"b"}}}')
    changed = [("p_001", "applied", 2), ("p_002", "applied", 2)]
    await workflow.complete(running, StepResult("applied", changed=changed, undo_token=token))
    assert await workflow.client.llen(workflow.keys.undo(job_id)) == 2
    await workflow.start(job_id, "second", discard_decisions=True)
    assert await workflow.client.lrange(workflow.keys.undo(job_id), 0, -1) == [token.encode()]
    assert await workflow.client.hkeys(operations) == [token.encode()]
    left = codec.loads(await workflow.client.hget(operations, token) or b"")
    assert (left["effects"], not left["items"]) == ({"terms": {"a": "b"}}, True)
    assert await workflow.client.exists(workflow.keys.undoable(job_id)) == 0
    record = await workflow.record(job_id)
    counters = ("proposed", "approved", "applied", "pending_changes", "last_operation")
    assert [record[counter] for counter in counters] == ["0", "0", "0", "0", ""]
