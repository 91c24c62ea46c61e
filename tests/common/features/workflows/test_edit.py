"""EDIT: a new payload for a proposal, based on the version that the editor has seen."""

from __future__ import annotations

import pytest

from common.errors import CorruptKey
from common.features.workflows.types import WorkflowAnswer
from tests.common.features.workflows.item_kit import (
    MISSING,
    OK,
    REFUSED,
    approve,
    counters,
    decide,
    edit,
    in_review,
    in_review_by_itself,
    item,
    payload,
    reject,
    stack,
    undoable,
    with_proposals,
)
from tests.common.features.workflows.kit import ADMISSION, Flow, once


async def test_an_edit_replaces_the_payload_and_approves(flow: Flow) -> None:
    job_id = await in_review(flow)
    outcome = await edit(flow, job_id, "p_002", 1, token="00c0ffee")
    assert outcome.answer is OK
    assert outcome.facts == {
        "item_id": "p_002",
        "version": 2,
        "status": "approved",
        "undo_token": "undo_00c0ffee",
        "pending": 2,
        "completed": False,
    }
    assert await payload(flow, job_id, "p_002") == {"n": "new"}
    assert await item(flow, job_id, "p_002") == "approved 2 1 0.750000"
    assert await counters(flow, job_id) == (2, 1, 0, 0, 1)
    assert await stack(flow, job_id) == ["undo_00c0ffee"]
    assert await undoable(flow, job_id) == {"p_002": "undo_00c0ffee"}
    kind, step, data = (await flow.events(job_id))[-1]
    assert (kind, step, data["operation"], data["items"]) == (
        "item.changed",
        "second",
        "edit",
        ["p_002"],
    )
    assert (await payload(flow, job_id, "r_001"))["operation"] == "edit"
    assert (await flow.record(job_id)).get("last_operation", "") == ""  # only for bulk operations
    assert (await flow.step(job_id, "review"))["done"] == "1"


async def test_without_approval_the_status_is_unchanged(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, [reject("p_001")])
    await edit(flow, job_id, "p_001", 2, auto_approve=False)
    await edit(flow, job_id, "p_002", 1, auto_approve=False)
    assert await item(flow, job_id, "p_001") == "rejected 3 1 0.750000"
    assert await item(flow, job_id, "p_002") == "proposed 2 1 0.750000"
    # A rejected item is not pending, an edited one is.
    assert await counters(flow, job_id) == (2, 0, 1, 0, 1)


async def test_a_payload_is_stored_byte_by_byte(flow: Flow) -> None:
    job_id = await in_review(flow)
    odd = '{"n": 1.0, "t": "\\u0000/é", "e": [], "o": {}, "big": 12345678901234567890}'.encode()
    await edit(flow, job_id, "p_001", 1, payload=odd)
    await edit(flow, job_id, "p_001", 2, payload=b"{}")
    assert await flow.client.hget(flow.keys.items(job_id), "p_001") == b"{}"
    await flow.store.undo(job_id, "undo_p_001", once())
    assert await flow.client.hget(flow.keys.items(job_id), "p_001") == odd


@pytest.mark.parametrize("version", [0, 2, 99])
async def test_another_version_is_refused(flow: Flow, version: int) -> None:
    job_id = await in_review(flow)
    snapshot = await flow.snapshot()
    outcome = await edit(flow, job_id, "p_001", version)
    assert outcome.answer is REFUSED
    assert outcome.facts == {"code": "version_conflict", "version": 1, "status": "proposed"}
    assert await flow.snapshot() == snapshot


async def test_a_missing_job_or_item_is_named(flow: Flow) -> None:
    job_id = await in_review(flow)
    assert (await edit(flow, job_id, "p_404", 1))[:2] == (MISSING, {"what": "item_not_found"})
    assert (await edit(flow, job_id, "", 1)).answer is MISSING
    assert (await edit(flow, "wf_20260214_999", "p_001", 1)).facts == {"what": "job_not_found"}


async def test_only_open_proposals_can_be_edited(flow: Flow) -> None:
    job_id = await with_proposals(flow, 0.5)
    assert (await edit(flow, job_id, "p_001", 1)).answer is OK
    await decide(flow, job_id, [], reviewing=True)
    outcome = await edit(flow, job_id, "p_001", 2)
    assert outcome.facts == {"code": "not_reviewable", "version": 2, "status": "approved"}
    assert (await edit(flow, job_id, "r_001", 1)).facts["code"] == "not_reviewable"


async def test_the_last_decision_by_edit_ends_the_review(flow: Flow) -> None:
    job_id = await in_review(flow, 0.5)
    assert not (await edit(flow, job_id, "p_001", 1, auto_approve=False)).facts["completed"]
    outcome = await edit(flow, job_id, "p_001", 2)
    assert (outcome.facts["pending"], outcome.facts["completed"]) == (0, True)
    assert "started" not in outcome.facts
    assert (await flow.record(job_id))["status"] == "running"
    assert (await flow.statuses(job_id))[2:4] == ["complete", "not_started"]


async def test_an_edit_starts_the_next_step_unless_the_queue_is_full(flow: Flow) -> None:
    job_id = await in_review_by_itself(flow)
    await edit(flow, job_id, "p_001", 1)
    before = await flow.snapshot()
    full = ADMISSION._replace(backlog_limit=1)
    assert (await edit(flow, job_id, "p_002", 1, admission=full)).answer is WorkflowAnswer.FULL
    assert await flow.snapshot() == before
    started = flow.started(job_id, await edit(flow, job_id, "p_002", 1))
    assert started.step == "apply"
    assert (await flow.complete(started)).answer is OK


async def test_a_repeated_edit_has_one_effect(flow: Flow) -> None:
    job_id = await in_review(flow)
    first = await edit(flow, job_id, "p_001", 1, once("k"))
    snapshot = await flow.snapshot()
    again = await edit(flow, job_id, "p_001", 1, once("k"))
    assert (again.answer, again.facts, again.replayed) == (OK, first.facts, True)
    other = await edit(flow, job_id, "p_001", 1, once("k", "another"))
    assert other.answer is WorkflowAnswer.REUSED
    assert await flow.snapshot() == snapshot


async def test_a_decision_based_on_an_older_version_fails(flow: Flow) -> None:
    job_id = await in_review(flow)
    await edit(flow, job_id, "p_001", 1, auto_approve=False)
    outcome = await decide(flow, job_id, [approve("p_001", 1)])
    assert outcome.facts["failed"][0]["code"] == "version_conflict"


async def test_an_invalid_state_fails_before_any_write(flow: Flow) -> None:
    job_id = await in_review(flow)
    await flow.client.hset(flow.keys.states(job_id), "p_001", "what?")
    snapshot = await flow.snapshot()
    with pytest.raises(CorruptKey):
        await edit(flow, job_id, "p_001", 1)
    with pytest.raises(CorruptKey):
        await decide(flow, job_id, [approve("p_001")])
    assert await flow.snapshot() == snapshot
