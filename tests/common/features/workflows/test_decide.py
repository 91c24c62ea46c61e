"""DECIDE: individually or by filter, fenced by versions; the last decision ends the review."""

from __future__ import annotations

import asyncio

import pytest

from common.contracts.workflow.statuses import Action, ItemStatus
from common.errors import CorruptKey
from common.features.workflows.types import WorkflowAnswer
from common.jobs.limits import KeyLimits
from tests.common.features.workflows.item_kit import (
    MISSING,
    OK,
    REFUSED,
    approve,
    counters,
    decide,
    in_review,
    in_review_by_itself,
    item,
    payload,
    proposed,
    reject,
    reset,
    stack,
    undoable,
    with_proposals,
)
from tests.common.features.workflows.kit import ADMISSION, Flow, limit_keys, once


async def test_a_decision_changes_its_item_and_is_recorded(flow: Flow) -> None:
    job_id = await in_review(flow)
    before = len(await flow.events(job_id))
    outcome = await decide(
        flow, job_id, [approve("p_001", 1, "good"), reject("p_002")], token="00c0ffee"
    )
    assert outcome == (
        OK,
        {
            "applied": ["p_001", "p_002"],
            "failed": [],
            "undo_token": "undo_00c0ffee",
            "pending": 1,
            "completed": False,
        },
        False,
        0,
        0,
        b"",
    )
    assert await item(flow, job_id, "p_001") == "approved 2 0 0.500000"
    assert await item(flow, job_id, "p_002") == "rejected 2 0 0.500000"
    assert await item(flow, job_id, "p_003") == "proposed 1 0 0.500000"
    assert await counters(flow, job_id) == (1, 1, 1, 0, 1)
    assert await stack(flow, job_id) == ["undo_00c0ffee"]
    assert await undoable(flow, job_id) == {"p_001": "undo_00c0ffee", "p_002": "undo_00c0ffee"}
    audit = await payload(flow, job_id, "r_001")
    assert audit.pop("at").endswith("Z")
    assert audit == {
        "who": "somebody",
        "operation": "decide_selected",
        "proposals": ["p_001", "p_002"],
        "note": "",
        "undo_token": "undo_00c0ffee",
        "decisions": [
            {"id": "p_001", "action": "approve", "note": "good"},
            {"id": "p_002", "action": "reject", "note": ""},
        ],
    }
    [event] = (await flow.events(job_id))[before:]
    assert event == (
        "item.changed",
        "second",
        {
            "operation": "decide_selected",
            "items": ["p_001", "p_002"],
            "count": 2,
            "undo_token": "undo_00c0ffee",
            "who": "somebody",
        },
    )
    record = await flow.record(job_id)
    assert (record["status"], record["last_operation"]) == ("waiting_input", "decide_selected")
    step = await flow.step(job_id, "review")
    assert (step["done"], step["total"]) == ("2", "3")
    assert await flow.without_ttl() == []


async def test_a_failed_decision_does_not_affect_the_others(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, [approve("p_001")])
    outcome = await decide(
        flow,
        job_id,
        [approve("p_002", 1), reject("p_001", 1), approve("p_404"), approve("f_001"), approve("x")],
    )
    assert outcome.facts["applied"] == ["p_002"]
    assert outcome.facts["failed"] == [
        {"id": "p_001", "code": "version_conflict", "version": 2, "status": "approved"},
        {"id": "p_404", "code": "item_not_found"},
        {"id": "f_001", "code": "item_not_found"},
        {"id": "x", "code": "item_not_found"},
    ]
    assert await item(flow, job_id, "p_001") == "approved 2 0 0.500000"


async def test_an_item_with_the_requested_status_is_unchanged(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, [approve("p_001")])
    before = await flow.events(job_id)
    outcome = await decide(flow, job_id, [approve("p_001"), reset("p_002")])
    assert outcome.facts["applied"] == ["p_001", "p_002"]
    assert outcome.facts["undo_token"] == ""
    assert await item(flow, job_id, "p_001") == "approved 2 0 0.500000"
    assert await flow.events(job_id) == before
    assert len(await stack(flow, job_id)) == 1


async def test_the_last_of_two_decisions_about_an_item_counts(flow: Flow) -> None:
    job_id = await in_review(flow)
    outcome = await decide(flow, job_id, [approve("p_001"), reject("p_001")])
    assert outcome.facts["applied"] == ["p_001"]
    assert await item(flow, job_id, "p_001") == "rejected 2 0 0.500000"
    assert await counters(flow, job_id) == (2, 0, 1, 0, 0)


async def test_a_decision_can_be_changed(flow: Flow) -> None:
    job_id = await in_review(flow)
    for decision, status in (
        (approve("p_001"), "approved"),
        (reject("p_001"), "rejected"),
        (approve("p_001"), "approved"),
        (reset("p_001"), "proposed"),
    ):
        await decide(flow, job_id, [decision])
        assert (await item(flow, job_id, "p_001")).startswith(status)
    assert await item(flow, job_id, "p_001") == "proposed 5 0 0.500000"
    assert await counters(flow, job_id) == (3, 0, 0, 0, 0)


async def test_one_action_for_all_items_that_pass_the_filter(flow: Flow) -> None:
    job_id = await in_review(flow, 0.95, 0.9, 0.2, 0.99)
    await decide(flow, job_id, [reject("p_004")])
    outcome = await decide(
        flow, job_id, action=Action.APPROVE, status=ItemStatus.PROPOSED, min_confidence=0.9
    )
    assert outcome.facts["applied"] == ["p_001", "p_002"]
    assert outcome.facts["pending"] == 1
    assert (await flow.record(job_id))["last_operation"] == "approve_filtered"
    assert (await item(flow, job_id, "p_004")).startswith("rejected")
    outcome = await decide(flow, job_id, action=Action.RESET)
    assert outcome.facts["applied"] == ["p_001", "p_002", "p_003", "p_004"]
    assert (await flow.record(job_id))["last_operation"] == "reset_all"
    assert await counters(flow, job_id) == (4, 0, 0, 0, 0)


async def test_an_event_about_many_items_has_only_their_number(flow: Flow) -> None:
    job_id = await in_review(flow, *([0.5] * 1200))
    outcome = await decide(flow, job_id, action=Action.APPROVE, status=ItemStatus.PROPOSED)
    assert len(outcome.facts["applied"]) == 1200
    _kind, _, data = next(e for e in await flow.events(job_id) if e[0] == "item.changed")
    assert data["count"] == 1200
    assert "items" not in data
    assert len(await undoable(flow, job_id)) == 1200
    assert len((await payload(flow, job_id, "r_001"))["proposals"]) == 1200


async def test_decisions_are_refused_outside_of_a_review(flow: Flow) -> None:
    job_id = await flow.create()
    assert (await decide(flow, job_id, [approve("p_001")])).facts == {"code": "not_reviewable"}
    await flow.run(job_id, "first")
    running = await flow.start(job_id, "second")
    snapshot = await flow.snapshot()
    assert (await decide(flow, job_id, action=Action.APPROVE)).answer is REFUSED
    assert await flow.snapshot() == snapshot
    await flow.complete(running, proposed(0.5, 0.5))
    assert (await decide(flow, job_id, action=Action.APPROVE)).answer is OK
    await flow.execute(job_id, "review")
    snapshot = await flow.snapshot()
    assert (await decide(flow, job_id, [reject("p_001")])).facts == {"code": "not_reviewable"}
    assert await flow.snapshot() == snapshot
    assert (await decide(flow, "wf_20260214_999")).facts == {"what": "job_not_found"}


async def test_items_of_a_cancelled_job_cannot_be_decided(flow: Flow) -> None:
    job_id = await in_review(flow)
    await flow.store.cancel(job_id, once())
    assert (await decide(flow, job_id, [approve("p_001")])).answer is REFUSED


async def test_a_review_of_decided_items_ends_at_once(flow: Flow) -> None:
    job_id = await with_proposals(flow)
    outcome = await decide(flow, job_id, action=Action.APPROVE)
    assert (outcome.facts["pending"], outcome.facts["completed"]) == (0, False)
    assert await flow.statuses(job_id) == ["complete"] * 2 + ["not_started"] * 3
    entered = await flow.execute(job_id, "review")
    assert (entered.facts["completed"], entered.facts["waiting"]) == (True, False)
    assert (await flow.record(job_id))["status"] == "running"


@pytest.mark.parametrize("reviewing", [False, True])
async def test_the_last_decision_ends_the_review(flow: Flow, reviewing: bool) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, [approve("p_001")], reviewing=reviewing)
    outcome = await decide(flow, job_id, [reject("p_002"), approve("p_003")], reviewing=reviewing)
    assert (outcome.facts["completed"], outcome.facts["pending"]) == (True, 0)
    assert "started" not in outcome.facts
    assert await flow.statuses(job_id) == ["complete"] * 3 + ["not_started"] * 2
    record = await flow.record(job_id)
    assert (record["status"], record["current_step"]) == ("running", "review")
    assert await flow.client.zcard(flow.keys.reviews) == 0
    assert (await flow.events(job_id))[-1] == (
        "step.completed",
        "review",
        {"step": "review", "summary": "2 approved, 1 rejected", "count": 3},
    )


async def test_the_last_decision_starts_the_next_step(flow: Flow) -> None:
    job_id = await in_review_by_itself(flow)
    outcome = await decide(flow, job_id, action=Action.APPROVE)
    assert outcome.facts["completed"]
    started = flow.started(job_id, outcome)
    assert started.step == "apply"
    assert await flow.statuses(job_id) == ["complete"] * 3 + ["running", "not_started"]
    queued = await flow.queued()
    assert queued[-1][1]["execution_id"] == started.execution
    assert await flow.running() == {job_id: f"apply {started.execution}"}


async def test_finalize_rejects_undecided_items(flow: Flow) -> None:
    job_id = await in_review(flow)
    outcome = await decide(flow, job_id, [approve("p_002")], reviewing=True, finalize=True)
    assert outcome.facts["applied"] == ["p_002", "p_001", "p_003"]
    assert outcome.facts["completed"]
    assert await counters(flow, job_id) == (0, 1, 2, 0, 1)
    assert len(await stack(flow, job_id)) == 1


async def test_finalize_does_nothing_if_a_decision_failed(flow: Flow) -> None:
    job_id = await in_review(flow)
    outcome = await decide(flow, job_id, [approve("p_002", 7)], reviewing=True, finalize=True)
    assert (outcome.facts["applied"], outcome.facts["completed"]) == ([], False)
    assert outcome.facts["pending"] == 3
    assert await counters(flow, job_id) == (3, 0, 0, 0, 0)


async def test_a_decision_through_the_review_step_opens_it(flow: Flow) -> None:
    job_id = await with_proposals(flow)
    outcome = await decide(flow, job_id, [approve("p_001")], reviewing=True, step="review")
    assert (outcome.facts["completed"], outcome.facts["pending"]) == (False, 2)
    assert (await flow.record(job_id))["status"] == "waiting_input"
    assert (await flow.types(job_id))[-3:] == ["step.started", "item.changed", "job.waiting_input"]
    outcome = await decide(flow, job_id, [], reviewing=True, finalize=True)
    assert outcome.facts["completed"]
    assert (await flow.record(job_id))["last_operation"] == "reject_filtered"


async def test_a_full_queue_refuses_only_decisions_that_start_a_step(flow: Flow) -> None:
    job_id = await in_review_by_itself(flow)
    full = ADMISSION._replace(backlog_limit=0)
    outcome = await decide(flow, job_id, [approve("p_001")], admission=full)
    assert outcome.answer is OK
    snapshot = await flow.snapshot()
    outcome = await decide(flow, job_id, [approve("p_002")], admission=full)
    assert outcome.answer is WorkflowAnswer.FULL
    assert await flow.snapshot() == snapshot
    limits = KeyLimits(*limit_keys(flow), 1_000_000, 1, 1)
    limited = ADMISSION._replace(limits=limits)
    outcome = await decide(flow, job_id, [approve("p_002")], admission=limited)
    assert outcome.facts["started"]["step"] == "apply"
    core_job = outcome.facts["started"]["core_job_id"]
    assert await flow.client.zrange(limits.active_key, 0, -1) == [core_job.encode()]


async def test_a_repeated_request_has_one_effect(flow: Flow) -> None:
    job_id = await in_review_by_itself(flow)
    request = once("k")
    first = await decide(flow, job_id, action=Action.APPROVE, request=request)
    snapshot = await flow.snapshot()
    again = await decide(flow, job_id, action=Action.APPROVE, request=request)
    assert (again.answer, again.facts, again.replayed) == (OK, first.facts, True)
    other = await decide(flow, job_id, action=Action.REJECT, request=once("k", "another"))
    assert other.answer is WorkflowAnswer.REUSED
    assert await flow.snapshot() == snapshot


async def test_of_concurrent_deciders_one_ends_the_review(flow: Flow) -> None:
    job_id = await in_review_by_itself(flow)
    outcomes = await asyncio.gather(
        *(decide(flow, job_id, [approve("p_001"), approve("p_002")]) for _ in range(10))
    )
    assert [outcome.answer for outcome in outcomes].count(OK) == 1
    assert len(await flow.queued()) == 3
    assert await item(flow, job_id, "p_001") == "approved 2 0 0.500000"


@pytest.mark.parametrize("name", ["undoable", "operations", "undo", "states", "items", "order"])
async def test_a_key_of_the_wrong_type_fails_before_any_write(flow: Flow, name: str) -> None:
    job_id = await in_review(flow)
    key = getattr(flow.keys, name)(job_id)
    await flow.client.delete(key)
    await flow.client.set(key, "no such thing")
    snapshot = await flow.snapshot()
    with pytest.raises(CorruptKey):
        await decide(flow, job_id, [approve("p_001")])
    assert await flow.snapshot() == snapshot


async def test_a_missing_job_is_reported(flow: Flow) -> None:
    job_id = await in_review(flow)
    await flow.client.delete(flow.keys.job(job_id))
    assert (await decide(flow, job_id, [approve("p_001")])).answer is MISSING
