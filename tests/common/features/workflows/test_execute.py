"""EXECUTE: which step starts, which steps run before it, refusals and resets."""

from __future__ import annotations

import asyncio

import pytest

from common import codec
from common.contracts import values_of
from common.contracts.jobs import JobField
from common.errors import CorruptKey
from common.features.workflows.types import (
    ExecuteCommand,
    NewItem,
    StepResult,
    WorkflowAnswer,
)
from common.jobs.limits import AdmissionLimits, KeyLimits
from tests.common.features.workflows.kit import (
    ADMISSION,
    FIVE,
    Flow,
    fresh_ids,
    limit_keys,
    once,
    proposals,
)

OK, REFUSED, MISSING = WorkflowAnswer.OK, WorkflowAnswer.REFUSED, WorkflowAnswer.MISSING


async def test_a_step_is_an_ordinary_core_job(flow: Flow) -> None:
    job_id = await flow.create(tenant="acme")
    ids = fresh_ids()
    wanted = ExecuteCommand(job_id, "first", options=b'{"a":1}')
    outcome = await flow.store.execute(wanted, once(), ids, ADMISSION)
    assert outcome.facts == {
        "step": "first", "execution_id": ids.execution, "core_job_id": ids.core_job,
        "started": True,
    }  # fmt: skip
    step = await flow.step(job_id, "first")
    assert (step["status"], step["attempt"], step["options"]) == ("running", "1", '{"a":1}')
    assert (step["execution"], step["core_job"]) == tuple(ids)
    record = await flow.record(job_id)
    assert (record["status"], record["current_step"]) == ("running", "first")
    assert record["draft_state"] == "dirty"
    assert await flow.running() == {job_id: f"first {ids.execution}"}

    core = await flow.client.hgetall(flow.jobs.job(ids.core_job))
    assert {name.decode() for name in core} == set(values_of(JobField))
    arguments = {"workflow_job_id": job_id, "step": "first", "execution_id": ids.execution}
    payload = codec.loads(core[b"payload"])
    assert payload == {"tool": "workflow.step", "args": arguments}
    assert (core[b"task"], core[b"status"], core[b"ttl_s"]) == (b"tool", b"queued", b"600")
    lease = await flow.client.hgetall(flow.jobs.lease(ids.core_job))
    assert (lease[b"attempt"], lease[b"max_attempts"]) == (b"0", b"3")
    assert codec.loads(lease[b"options"]) == {"tenant": "acme", "timeout_s": 12.5}
    [(_, event)] = await flow.client.xrange(flow.jobs.events(ids.core_job))
    assert (event[b"type"], event[b"step"]) == (b"queued", b"gateway.enqueue")
    assert await flow.queued() == [(ids.core_job, arguments)]
    for key in (flow.jobs.job, flow.jobs.events, flow.jobs.lease):
        assert 0 < await flow.client.ttl(key(ids.core_job)) <= 600
    kind, _, data = (await flow.events(job_id))[-1]
    assert kind == "step.started"
    assert data == {
        "step": "first", "execution_id": ids.execution, "core_job_id": ids.core_job, "attempt": 1,
    }  # fmt: skip
    assert await flow.without_ttl() == []


async def test_a_step_without_options_has_none(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.run(job_id, "first")
    await flow.start(job_id, "second")
    core_id, _ = (await flow.queued())[-1]
    assert await flow.client.hgetall(flow.jobs.lease(core_id)) == {b"attempt": b"0"}


async def test_earlier_steps_run_first_and_in_order(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "second")
    assert running.step == "first"
    outcome = await flow.complete(running)
    running = flow.started(job_id, outcome)
    assert running.step == "second"
    assert "started" not in (await flow.complete(running)).facts
    assert (await flow.record(job_id))["target"] == ""
    assert await flow.statuses(job_id) == ["complete", "complete"] + ["not_started"] * 3


async def test_a_strict_request_runs_no_earlier_steps(flow: Flow) -> None:
    job_id = await flow.create()
    before = await flow.snapshot()
    refused = await flow.execute(job_id, "second", strict=True)
    assert (refused.answer, refused.facts) == (
        REFUSED, {"code": "step_out_of_order", "step": "first"},
    )  # fmt: skip
    assert await flow.snapshot() == before
    assert (await flow.execute(job_id, "first", strict=True)).answer is OK


async def test_a_missing_job_or_step_is_not_executed(flow: Flow) -> None:
    job_id = await flow.create()
    assert (await flow.execute("wf_20260214_999", "first")).answer is MISSING
    unknown = await flow.execute(job_id, "third")
    assert (unknown.answer, unknown.facts) == (REFUSED, {"code": "unknown_step"})


async def test_one_step_runs_at_a_time(flow: Flow) -> None:
    job_id = await flow.create()
    outcomes = await asyncio.gather(*(flow.execute(job_id, "first") for _ in range(20)))
    [started] = [outcome for outcome in outcomes if outcome.answer is OK]
    for outcome in outcomes:
        if outcome is not started:
            assert outcome.facts == {
                "code": "step_in_progress", "step": "first",
                "execution_id": started.facts["execution_id"],
            }  # fmt: skip
    assert len(await flow.queued()) == 1


async def test_a_review_is_never_skipped(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.run(job_id, "first")
    await flow.run(job_id, "second", proposals(2))
    required = {"code": "review_required", "step": "review", "pending": 2}
    refused = await flow.execute(job_id, "apply")
    assert (refused.answer, refused.facts) == (REFUSED, required)
    record = await flow.record(job_id)
    assert (record["status"], record["current_step"]) == ("waiting_input", "review")
    assert record["target"] == ""
    before = await flow.snapshot()
    assert (await flow.execute(job_id, "last")).facts == required
    assert await flow.snapshot() == before  # it was waiting already


async def test_a_target_beyond_a_review_runs_up_to_it(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "apply")
    running = flow.started(job_id, await flow.complete(running))
    assert running.step == "second"
    assert "started" not in (await flow.complete(running, proposals(1))).facts
    record = await flow.record(job_id)
    assert (record["status"], record["target"]) == ("waiting_input", "")


async def test_a_review_with_nothing_to_decide_does_not_wait(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "apply")
    running = flow.started(job_id, await flow.complete(running))
    running = flow.started(job_id, await flow.complete(running))
    assert running.step == "apply"
    assert (await flow.record(job_id))["draft_state"] == "saving"


async def test_executing_a_review_opens_it(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.run(job_id, "first")
    await flow.run(job_id, "second", proposals(3))
    outcome = await flow.execute(job_id, "review")
    assert outcome.answer is OK
    assert outcome.facts == {
        "step": "review", "started": False, "waiting": True, "completed": False, "pending": 3,
    }  # fmt: skip
    assert await flow.running() == {}


async def test_executing_a_step_again_resets_later_steps(flow: Flow) -> None:
    job_id = await flow.create()
    things = StepResult("two", [NewItem(b"{}"), NewItem(b"{}")])
    first = await flow.start(job_id, "first")
    await flow.store.put(first, "left", b"for later")
    await flow.complete(first, things)
    await flow.run(job_id, "second", proposals(3))
    assert await flow.ids(job_id) == ["f_001", "f_002", "p_001", "p_002", "p_003"]
    again = await flow.start(job_id, "first")
    assert await flow.statuses(job_id) == ["running"] + ["not_started"] * 4
    assert await flow.ids(job_id) == []
    assert await flow.states(job_id) == {}
    record = await flow.record(job_id)
    assert record["proposed"] == "0"
    assert (await flow.step(job_id, "first"))["attempt"] == "2"
    assert await flow.client.exists(flow.keys.data(job_id)) == 0
    assert (await flow.types(job_id))[-2:] == ["step.reset", "step.started"]
    # The replaced execution can no longer write.
    assert (await flow.complete(first, things)).answer is WorkflowAnswer.LOST
    await flow.complete(again, things)
    assert await flow.ids(job_id) == ["f_001", "f_002"]
    order = await flow.client.zrange(flow.keys.order(job_id), 0, -1, withscores=True)
    assert [score for _, score in order] == [6, 7]  # an earlier cursor remains valid


async def test_decisions_are_not_discarded_by_mistake(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.run(job_id, "first")
    await flow.run(job_id, "second", proposals(2))
    states = flow.keys.states(job_id)
    await flow.client.hset(states, "p_002", "approved 2 0 0.500000")
    before = await flow.snapshot()
    refused = await flow.execute(job_id, "second")
    assert refused.facts == {
        "code": "would_discard_decisions", "step": "second", "items": ["p_002"],
    }  # fmt: skip
    assert await flow.snapshot() == before
    await flow.client.hset(states, "p_002", "proposed 2 1 0.500000")  # edited
    assert (await flow.execute(job_id, "first")).facts["code"] == "would_discard_decisions"
    assert (await flow.execute(job_id, "first", discard_decisions=True)).answer is OK


async def test_executing_a_review_again_keeps_decisions(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.run(job_id, "first")
    await flow.run(job_id, "second", proposals(1))
    await flow.approve_all(job_id)
    await flow.execute(job_id, "review")
    await flow.run(job_id, "apply")
    outcome = await flow.execute(job_id, "review")
    assert (outcome.answer, outcome.facts["completed"]) == (OK, True)
    assert await flow.statuses(job_id) == ["complete"] * 3 + ["not_started"] * 2
    assert (await flow.states(job_id))["p_001"] == "approved 2 0 0.500000"


async def test_a_failed_step_resumes_without_repeating_earlier_steps(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.run(job_id, "first")
    failing = await flow.start(job_id, "second")
    await flow.store.put(failing, "half", b"done")
    await flow.store.fail(failing, b'[{"code":"x"}]')
    resumed = await flow.start(job_id, "second")
    assert resumed.execution != failing.execution
    record = await flow.record(job_id)
    assert (record["status"], record["draft_state"]) == ("running", "dirty")
    assert record["completed_ms"] == ""
    step = await flow.step(job_id, "second")
    assert (step["attempt"], step["errors"]) == ("2", "")
    assert await flow.client.exists(flow.keys.data(job_id)) == 0
    assert "step.reset" not in await flow.types(job_id)
    assert (await flow.step(job_id, "first"))["attempt"] == "1"


async def test_an_ended_job_executes_nothing(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.store.cancel(job_id, once())
    refused = await flow.execute(job_id, "first")
    assert (refused.answer, refused.facts) == (REFUSED, {"code": "job_terminal"})


async def test_options_apply_until_they_are_replaced(flow: Flow) -> None:
    job_id = await flow.create(options={"first": b'{"a":1}'})
    await flow.run(job_id, "first")
    assert (await flow.step(job_id, "first"))["options"] == '{"a":1}'
    await flow.start(job_id, "first", options=b"{}")
    assert (await flow.step(job_id, "first"))["options"] == "{}"


async def test_a_full_queue_starts_nothing(flow: Flow) -> None:
    job_id = await flow.create()
    before = await flow.snapshot()
    full = await flow.store.execute(
        ExecuteCommand(job_id, "first"), once(), fresh_ids(), AdmissionLimits("workers", 0, 600)
    )
    assert full.answer is WorkflowAnswer.FULL
    assert await flow.snapshot() == before


async def test_a_full_queue_starts_nothing_after_a_review_either(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.run(job_id, "first")
    await flow.run(job_id, "second", proposals(0))
    before = await flow.snapshot()
    full = AdmissionLimits("workers", 0, 600)
    outcome = await flow.store.execute(ExecuteCommand(job_id, "apply"), once(), fresh_ids(), full)
    assert outcome.answer is WorkflowAnswer.FULL
    assert await flow.snapshot() == before
    # The review alone is accepted, since it starts nothing.
    outcome = await flow.store.execute(ExecuteCommand(job_id, "review"), once(), fresh_ids(), full)
    assert (outcome.answer, outcome.facts["completed"]) == (OK, True)


async def test_items_without_a_state_do_not_stop_a_step(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.run(job_id, "first", proposals(1))
    await flow.run(job_id, "second", proposals(3))
    await flow.client.hdel(flow.keys.states(job_id), "p_001")
    await flow.client.hset(flow.keys.states(job_id), "f_001", "spoilt")
    running = await flow.start(job_id, "first")
    assert await flow.ids(job_id) == []
    assert (await flow.statuses(job_id))[:2] == ["running", "not_started"]
    assert (await flow.complete(running)).answer is OK


async def test_limits_of_the_caller_are_enforced(flow: Flow) -> None:
    limits = KeyLimits(*limit_keys(flow), 60_000_000, 2, 2)
    limited, ids = ADMISSION._replace(limits=limits), fresh_ids()
    answers = [
        await flow.store.execute(
            ExecuteCommand(await flow.create(), "first"), once(), each, limited
        )
        for each in (ids, fresh_ids(), fresh_ids())
    ]
    assert [outcome.answer for outcome in answers] == [OK, OK, WorkflowAnswer.RATE]
    assert await flow.client.zscore(limits.active_key, ids.core_job) is not None
    await flow.client.delete(limits.rate_key)
    more = ExecuteCommand(await flow.create(), "first")
    outcome = await flow.store.execute(more, once(), fresh_ids(), limited)
    assert (outcome.answer, outcome.facts) == (WorkflowAnswer.QUOTA, {"active": 2})


async def test_a_reset_review_does_not_wait_any_more(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.run(job_id, "first")
    await flow.run(job_id, "second", proposals(1))
    await flow.execute(job_id, "review")
    assert await flow.client.zcard(flow.keys.reviews) == 1
    await flow.start(job_id, "second")
    assert await flow.client.zcard(flow.keys.reviews) == 0
    assert (await flow.record(job_id))["status"] == "running"
    assert await flow.statuses(job_id) == ["complete", "running"] + ["not_started"] * 3


SPOILT = ("queue", "core", "running", "steps", "items", "states", "order", "step_order", "events")


@pytest.mark.parametrize("spoilt", [*SPOILT, "undo", "operations", "data", "parts", "outbox"])
async def test_a_key_of_the_wrong_type_fails_before_any_write(flow: Flow, spoilt: str) -> None:
    job_id = await flow.create()
    ids = fresh_ids()
    special = {
        "queue": flow.jobs.queue,
        "core": flow.jobs.events(ids.core_job),
        "running": flow.keys.running,
        "step_order": flow.keys.step_order(job_id, FIVE.steps[1].name),
    }
    key = special.get(spoilt) or getattr(flow.keys, spoilt)(job_id)
    kept = await flow.client.dump(key) if flow.backend.is_real else None
    await flow.client.delete(key)
    await flow.client.set(key, "spoilt")
    before = await flow.snapshot()
    same = once("k")
    with pytest.raises(CorruptKey):
        await flow.store.execute(ExecuteCommand(job_id, "first"), same, ids, ADMISSION)
    assert await flow.snapshot() == before
    await flow.client.delete(key)
    if kept is not None:
        await flow.client.restore(key, 0, kept)
    if spoilt not in ("steps", "events") or kept is not None:
        mended = await flow.store.execute(ExecuteCommand(job_id, "first"), same, ids, ADMISSION)
        assert mended.answer is OK


async def test_effects_of_removed_items_can_still_be_undone(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.run(job_id, "first")
    await flow.run(job_id, "second", proposals(2))
    await flow.approve_all(job_id)
    await flow.execute(job_id, "review")
    running = await flow.start(job_id, "apply")
    token = "undo_0a1b2c3d"
    operations = flow.keys.operations(job_id)
    await flow.client.hset(operations, token, b'{"effects":{"terms":{"a":"b"}}}')
    changed = [("p_001", "applied", 2), ("p_002", "applied", 2)]
    await flow.complete(running, StepResult("applied", changed=changed, undo_token=token))
    assert await flow.client.llen(flow.keys.undo(job_id)) == 2
    await flow.start(job_id, "second", discard_decisions=True)
    assert await flow.client.lrange(flow.keys.undo(job_id), 0, -1) == [token.encode()]
    assert await flow.client.hkeys(operations) == [token.encode()]
    left = codec.loads(await flow.client.hget(operations, token) or b"")
    assert (left["effects"], not left["items"]) == ({"terms": {"a": "b"}}, True)
    assert await flow.client.exists(flow.keys.undoable(job_id)) == 0
    record = await flow.record(job_id)
    counters = ("proposed", "approved", "applied", "pending_changes", "last_operation")
    assert [record[counter] for counter in counters] == ["0", "0", "0", "0", ""]
