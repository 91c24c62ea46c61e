"""EDIT: a new payload for a proposal, based on the version that the editor has seen."""

from __future__ import annotations

import pytest

from common.errors import CorruptKey
from tests.support.store.workflows import (
    ADMISSION,
    FULL,
    MISSING,
    OK,
    REFUSED,
    WorkflowHarness,
    approve,
    once,
    reject,
)


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


async def test_an_edit_starts_the_next_step_unless_the_queue_is_full(
    workflow: WorkflowHarness,
) -> None:
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
