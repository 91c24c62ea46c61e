"""DECIDE and EDIT: fenced by versions; the last decision ends the review."""

from __future__ import annotations

import pytest

from sluice.common.contracts.workflow.statuses import Action, ItemStatus
from sluice.common.errors import CorruptKey
from sluice.common.jobs.limits import KeyLimits
from tests.support.store.workflows import (
    ADMISSION,
    FULL,
    MISSING,
    OK,
    REFUSED,
    WorkflowHarness,
    approve,
    limit_keys,
    once,
    proposed,
    reject,
    reset,
)


async def test_a_decision_changes_its_item_and_is_recorded(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    before = len(await workflow.events(job_id))
    outcome = await workflow.decide(
        job_id, [approve("p_001", 1, "good"), reject("p_002")], token="00c0ffee"
    )
    facts = {"applied": ["p_001", "p_002"], "failed": [], "undo_token": "undo_00c0ffee"}
    assert outcome == (OK, {**facts, "pending": 1, "completed": False}, False, 0, 0, b"")
    assert await workflow.item(job_id, "p_001") == "approved 2 0 0.500000"
    assert await workflow.item(job_id, "p_002") == "rejected 2 0 0.500000"
    assert await workflow.item(job_id, "p_003") == "proposed 1 0 0.500000"
    assert await workflow.counters(job_id) == (1, 1, 1, 0, 1)
    assert await workflow.stack(job_id) == ["undo_00c0ffee"]
    assert await workflow.undoable(job_id) == {"p_001": "undo_00c0ffee", "p_002": "undo_00c0ffee"}
    audit = await workflow.payload(job_id, "r_001")
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
    [event] = (await workflow.events(job_id))[before:]
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
    await workflow.has(job_id, status="waiting_input", last_operation="decide_selected")
    await workflow.step_has(job_id, "review", done="2", total="3")
    assert await workflow.without_ttl() == []


async def test_a_failed_decision_does_not_affect_the_others(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    await workflow.decide(job_id, [approve("p_001")])
    outcome = await workflow.decide(
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
    assert await workflow.item(job_id, "p_001") == "approved 2 0 0.500000"


async def test_a_decision_can_be_changed_or_repeated(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    for decision, state in (
        (approve("p_001"), "approved 2 0 0.500000"),
        (reject("p_001"), "rejected 3 0 0.500000"),
        (approve("p_001"), "approved 4 0 0.500000"),
        (reset("p_001"), "proposed 5 0 0.500000"),
    ):
        await workflow.decide(job_id, [decision])
        assert await workflow.item(job_id, "p_001") == state
    assert await workflow.counters(job_id) == (3, 0, 0, 0, 0)
    before, stack = await workflow.events(job_id), await workflow.stack(job_id)
    outcome = await workflow.decide(job_id, [reset("p_001"), reset("p_002")])  # unchanged
    assert outcome.facts["applied"] == ["p_001", "p_002"]
    assert outcome.facts["undo_token"] == ""
    assert await workflow.item(job_id, "p_001") == "proposed 5 0 0.500000"
    assert (await workflow.events(job_id), await workflow.stack(job_id)) == (before, stack)
    # The last of two decisions about an item counts.
    outcome = await workflow.decide(job_id, [approve("p_001"), reject("p_001")])
    assert outcome.facts["applied"] == ["p_001"]
    assert await workflow.item(job_id, "p_001") == "rejected 6 0 0.500000"
    assert await workflow.counters(job_id) == (2, 0, 1, 0, 0)


async def test_one_action_for_all_items_that_pass_the_filter(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review(0.95, 0.9, 0.2, 0.99)
    await workflow.decide(job_id, [reject("p_004")])
    outcome = await workflow.decide(
        job_id, action=Action.APPROVE, status=ItemStatus.PROPOSED, min_confidence=0.9
    )
    assert outcome.facts["applied"] == ["p_001", "p_002"]
    assert outcome.facts["pending"] == 1
    assert (await workflow.record(job_id))["last_operation"] == "approve_filtered"
    assert (await workflow.item(job_id, "p_004")).startswith("rejected")
    outcome = await workflow.decide(job_id, action=Action.RESET)
    assert outcome.facts["applied"] == ["p_001", "p_002", "p_003", "p_004"]
    assert (await workflow.record(job_id))["last_operation"] == "reset_all"
    assert await workflow.counters(job_id) == (4, 0, 0, 0, 0)


@pytest.mark.real_redis
async def test_an_event_about_many_items_has_only_their_number(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review(*([0.5] * 1200))
    outcome = await workflow.decide(job_id, action=Action.APPROVE, status=ItemStatus.PROPOSED)
    assert len(outcome.facts["applied"]) == 1200
    _kind, _, data = next(e for e in await workflow.events(job_id) if e[0] == "item.changed")
    assert data["count"] == 1200
    assert "items" not in data
    assert len(await workflow.undoable(job_id)) == 1200
    assert len((await workflow.payload(job_id, "r_001"))["proposals"]) == 1200


async def test_decisions_are_refused_outside_of_a_review(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    assert (await workflow.decide(job_id, [approve("p_001")])).facts == {"code": "not_reviewable"}
    await workflow.run(job_id, "first")
    running = await workflow.start(job_id, "second")
    async with workflow.unchanged():
        assert (await workflow.decide(job_id, action=Action.APPROVE)).answer is REFUSED
    await workflow.complete(running, proposed(0.5, 0.5))
    assert (await workflow.decide(job_id, action=Action.APPROVE)).answer is OK
    await workflow.execute(job_id, "review")
    async with workflow.unchanged():
        assert (await workflow.decide(job_id, [reject("p_001")])).facts == {
            "code": "not_reviewable"
        }
    assert (await workflow.decide("wf_20260214_999")).facts == {"what": "job_not_found"}


@pytest.mark.parametrize("reviewing", [False, True])
async def test_the_last_decision_ends_a_review(workflow: WorkflowHarness, reviewing: bool) -> None:
    job_id = await workflow.in_review()
    await workflow.decide(job_id, [approve("p_001")], reviewing=reviewing)
    outcome = await workflow.decide(
        job_id, [reject("p_002"), approve("p_003")], reviewing=reviewing
    )
    assert (outcome.facts["completed"], outcome.facts["pending"]) == (True, 0)
    assert "started" not in outcome.facts
    assert await workflow.statuses(job_id) == ["complete"] * 3 + ["not_started"] * 2
    await workflow.has(job_id, status="running", current_step="review")
    assert await workflow.client.zcard(workflow.keys.reviews) == 0
    assert (await workflow.events(job_id))[-1] == (
        "step.completed",
        "review",
        {"step": "review", "summary": "2 approved, 1 rejected", "count": 3},
    )


async def test_the_last_decision_starts_the_next_step(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review_by_itself()
    outcome = await workflow.decide(job_id, action=Action.APPROVE, request=once("k"))
    assert outcome.facts["completed"]
    async with workflow.unchanged():  # a repeated request starts nothing
        again = await workflow.decide(job_id, action=Action.APPROVE, request=once("k"))
        assert (again.answer, again.facts, again.replayed) == (OK, outcome.facts, True)
    started = workflow.started(job_id, outcome)
    assert started.step == "apply"
    assert await workflow.statuses(job_id) == ["complete"] * 3 + ["running", "not_started"]
    queued = await workflow.queued()
    assert queued[-1][1]["execution_id"] == started.execution
    assert await workflow.running() == {job_id: f"apply {started.execution}"}


async def test_finalize_rejects_undecided_items(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    last = {"reviewing": True, "finalize": True}
    outcome = await workflow.decide(job_id, [approve("p_002", 7)], **last)
    assert (outcome.facts["applied"], outcome.facts["completed"]) == ([], False)  # one failed
    assert outcome.facts["pending"] == 3
    assert await workflow.counters(job_id) == (3, 0, 0, 0, 0)
    outcome = await workflow.decide(job_id, [approve("p_002")], **last)
    assert outcome.facts["applied"] == ["p_002", "p_001", "p_003"]
    assert outcome.facts["completed"]
    assert await workflow.counters(job_id) == (0, 1, 2, 0, 1)
    assert len(await workflow.stack(job_id)) == 1


async def test_a_decision_through_the_review_step_opens_it(workflow: WorkflowHarness) -> None:
    job_id = await workflow.with_proposals()
    outcome = await workflow.decide(job_id, [approve("p_001")], reviewing=True, step="review")
    assert (outcome.facts["completed"], outcome.facts["pending"]) == (False, 2)
    assert (await workflow.record(job_id))["status"] == "waiting_input"
    assert (await workflow.types(job_id))[-3:] == [
        "step.started",
        "item.changed",
        "job.waiting_input",
    ]
    assert (await workflow.decide(job_id, [], reviewing=True, finalize=True)).facts["completed"]
    assert (await workflow.record(job_id))["last_operation"] == "reject_filtered"


async def test_a_full_queue_refuses_decisions_that_start_a_step(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review_by_itself()
    full = ADMISSION._replace(backlog_limit=0)
    outcome = await workflow.decide(job_id, [approve("p_001")], admission=full)
    assert outcome.answer is OK
    async with workflow.unchanged():
        assert (await workflow.decide(job_id, [approve("p_002")], admission=full)).answer is FULL
    limits = KeyLimits(*limit_keys(workflow), 1_000_000, 1, 1)
    limited = ADMISSION._replace(limits=limits)
    outcome = await workflow.decide(job_id, [approve("p_002")], admission=limited)
    assert outcome.facts["started"]["step"] == "apply"
    core_job = outcome.facts["started"]["core_job_id"]
    assert await workflow.client.zrange(limits.active_key, 0, -1) == [core_job.encode()]


# -- EDIT: a new payload for a proposal, based on the version that the editor has seen ------------


async def test_an_edit_replaces_the_payload_and_approves(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    outcome = await workflow.edit(job_id, "p_002", 1, token="00c0ffee")
    assert outcome.answer is OK
    assert outcome.facts == {
        "item_id": "p_002",
        "version": 2,
        "status": "approved",
        "undo_token": "undo_00c0ffee",
        "pending": 2,
        "completed": False,
    }
    assert await workflow.payload(job_id, "p_002") == {"n": "new"}
    assert await workflow.item(job_id, "p_002") == "approved 2 1 0.750000"
    assert await workflow.counters(job_id) == (2, 1, 0, 0, 1)
    assert await workflow.stack(job_id) == ["undo_00c0ffee"]
    assert await workflow.undoable(job_id) == {"p_002": "undo_00c0ffee"}
    kind, step, data = (await workflow.events(job_id))[-1]
    assert (kind, step, data["operation"], data["items"]) == (
        "item.changed",
        "second",
        "edit",
        ["p_002"],
    )
    assert (await workflow.payload(job_id, "r_001"))["operation"] == "edit"
    assert (await workflow.record(job_id)).get(
        "last_operation", ""
    ) == ""  # only for bulk operations
    assert (await workflow.step(job_id, "review"))["done"] == "1"


async def test_without_approval_the_status_is_unchanged(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    await workflow.decide(job_id, [reject("p_001")])
    await workflow.edit(job_id, "p_001", 2, auto_approve=False)
    await workflow.edit(job_id, "p_002", 1, auto_approve=False)
    assert await workflow.item(job_id, "p_001") == "rejected 3 1 0.750000"
    assert await workflow.item(job_id, "p_002") == "proposed 2 1 0.750000"
    outcome = await workflow.decide(job_id, [approve("p_002", 1)])  # based on an older version
    assert outcome.facts["failed"][0]["code"] == "version_conflict"
    # A rejected item is not pending, an edited one is.
    assert await workflow.counters(job_id) == (2, 0, 1, 0, 1)


async def test_a_payload_is_stored_byte_by_byte(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    odd = '{"n": 1.0, "t": "\\u0000/é", "e": [], "o": {}, "big": 12345678901234567890}'.encode()
    await workflow.edit(job_id, "p_001", 1, payload=odd)
    await workflow.edit(job_id, "p_001", 2, payload=b"{}")
    assert await workflow.client.hget(workflow.keys.items(job_id), "p_001") == b"{}"
    await workflow.store.undo(job_id, "undo_p_001", once())
    assert await workflow.client.hget(workflow.keys.items(job_id), "p_001") == odd


async def test_a_wrong_version_or_id_is_refused(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    async with workflow.unchanged():
        for version in (0, 2, 99):
            outcome = await workflow.edit(job_id, "p_001", version)
            conflict = {"code": "version_conflict", "version": 1, "status": "proposed"}
            assert outcome[:2] == (REFUSED, conflict)
        missing = await workflow.edit(job_id, "p_404", 1)
        assert missing[:2] == (MISSING, {"what": "item_not_found"})
        assert (await workflow.edit(job_id, "", 1)).answer is MISSING
        missing = await workflow.edit("wf_20260214_999", "p_001", 1)
        assert missing.facts == {"what": "job_not_found"}


async def test_only_open_proposals_can_be_edited(workflow: WorkflowHarness) -> None:
    job_id = await workflow.with_proposals(0.5)
    assert (await workflow.edit(job_id, "p_001", 1)).answer is OK
    await workflow.decide(job_id, [], reviewing=True)
    outcome = await workflow.edit(job_id, "p_001", 2)
    assert outcome.facts == {"code": "not_reviewable", "version": 2, "status": "approved"}
    assert (await workflow.edit(job_id, "r_001", 1)).facts["code"] == "not_reviewable"


async def test_the_last_decision_by_edit_ends_the_review(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review(0.5)
    assert not (await workflow.edit(job_id, "p_001", 1, auto_approve=False)).facts["completed"]
    outcome = await workflow.edit(job_id, "p_001", 2)
    assert (outcome.facts["pending"], outcome.facts["completed"]) == (0, True)
    assert "started" not in outcome.facts
    assert (await workflow.record(job_id))["status"] == "running"
    assert (await workflow.statuses(job_id))[2:4] == ["complete", "not_started"]


async def test_an_edit_starts_a_step_unless_the_queue_is_full(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review_by_itself()
    await workflow.edit(job_id, "p_001", 1)
    async with workflow.unchanged():
        full = ADMISSION._replace(backlog_limit=1)
        assert (await workflow.edit(job_id, "p_002", 1, admission=full)).answer is FULL
    started = workflow.started(job_id, await workflow.edit(job_id, "p_002", 1))
    assert started.step == "apply"
    assert (await workflow.complete(started)).answer is OK


async def test_an_invalid_state_fails_before_any_write(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    await workflow.client.hset(workflow.keys.states(job_id), "p_001", "what?")
    async with workflow.unchanged():
        with pytest.raises(CorruptKey):
            await workflow.edit(job_id, "p_001", 1)
        with pytest.raises(CorruptKey):
            await workflow.decide(job_id, [approve("p_001")])
