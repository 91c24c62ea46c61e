"""UNDO: restores items or whole operations, but never discards later changes of others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common.contracts.workflow.statuses import UNDO_DEPTH, Action
from common.errors import CorruptKey
from common.features.workflows.types import WorkflowAnswer, WorkflowOutcome
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
    proposed,
    reject,
    reset,
    stack,
    undo,
    undoable,
    with_proposals,
)
from tests.common.features.workflows.kit import Flow, once


def code(outcome: WorkflowOutcome) -> Any:
    assert outcome.answer is REFUSED, outcome
    return outcome.facts["code"]


async def test_a_whole_operation_is_undone(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, [approve("p_001"), reject("p_002")], token="00c0ffee")
    before = len(await flow.events(job_id))
    outcome = await undo(flow, job_id, "undo_00c0ffee")
    assert outcome[:2] == (OK, {"undone": ["p_001", "p_002"], "token": "undo_00c0ffee"})
    assert await item(flow, job_id, "p_001") == "proposed 3 0 0.500000"
    assert await item(flow, job_id, "p_002") == "proposed 3 0 0.500000"
    assert await counters(flow, job_id) == (3, 0, 0, 0, 0)
    assert await stack(flow, job_id) == []
    assert await undoable(flow, job_id) == {}
    assert await flow.client.hlen(flow.keys.operations(job_id)) == 0
    assert (await flow.events(job_id))[before:] == [
        (
            "undo.applied",
            "second",
            {"undo_token": "undo_00c0ffee", "items": ["p_001", "p_002"], "count": 2},
        )
    ]
    assert (await flow.step(job_id, "review"))["done"] == "0"


async def test_a_token_works_once(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, [approve("p_001")], token="00c0ffee")
    assert (await undo(flow, job_id, "undo_00c0ffee")).answer is OK
    snapshot = await flow.snapshot()
    for token in ("undo_00c0ffee", "undo_p_001", "undo_p_404", "undo_", "", "p_001", "undo_*"):
        outcome = await undo(flow, job_id, token)
        assert outcome[:2] == (MISSING, {"what": "unknown_undo_token"}), token
    assert (await undo(flow, "wf_20260214_999", "undo_p_001")).facts == {"what": "job_not_found"}
    assert await flow.snapshot() == snapshot


async def test_changes_of_an_item_are_undone_one_by_one(flow: Flow) -> None:
    job_id = await in_review(flow)
    original = await payload(flow, job_id, "p_001")
    await decide(flow, job_id, [approve("p_001"), approve("p_002")])
    await edit(flow, job_id, "p_001", 2, payload=b'{"n":"a"}', confidence=0.9)
    await decide(flow, job_id, [reject("p_001")])
    await edit(flow, job_id, "p_001", 4, payload=b'{"n":"b"}', auto_approve=False)
    expected = [
        ("rejected 6 1 0.900000", {"n": "a"}),
        ("approved 7 1 0.900000", {"n": "a"}),
        ("approved 8 0 0.500000", original),
        ("proposed 9 0 0.500000", original),
    ]
    for state, content in expected:
        assert (await undo(flow, job_id, "undo_p_001")).facts["undone"] == ["p_001"]
        assert (await item(flow, job_id, "p_001"), await payload(flow, job_id, "p_001")) == (
            state,
            content,
        )
    assert (await undo(flow, job_id, "undo_p_001")).answer is MISSING
    assert await item(flow, job_id, "p_002") == "approved 2 0 0.500000"
    assert set(await undoable(flow, job_id)) == {"p_002"}
    assert len(await stack(flow, job_id)) == 1


async def test_a_later_change_prevents_an_undo(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, [approve("p_001"), approve("p_002")], token="0000000a")
    await decide(flow, job_id, [reject("p_002")], token="0000000b")
    snapshot = await flow.snapshot()
    outcome = await undo(flow, job_id, "undo_0000000a")
    assert outcome[:2] == (REFUSED, {"code": "undo_conflict", "items": ["p_002"]})
    assert await flow.snapshot() == snapshot
    # Once the later change is undone, the earlier one can be undone too.
    assert (await undo(flow, job_id, "undo_0000000b")).answer is OK
    assert (await undo(flow, job_id, "undo_0000000a")).facts["undone"] == ["p_001", "p_002"]
    assert await item(flow, job_id, "p_002") == "proposed 5 0 0.500000"


async def test_an_item_undone_alone_leaves_its_operation(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, [approve("p_001"), approve("p_002")], token="0000000a")
    await undo(flow, job_id, "undo_p_001")
    await decide(flow, job_id, [reject("p_001")])
    assert (await undo(flow, job_id, "undo_0000000a")).facts["undone"] == ["p_002"]
    assert (await item(flow, job_id, "p_001")).startswith("rejected")


async def test_the_oldest_operations_can_no_longer_be_undone(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, [approve("p_002")], token="0000000a")
    await decide(flow, job_id, [approve("p_001")], token="0000000b")
    for number in range(UNDO_DEPTH - 1):
        decision = reset("p_001") if number % 2 == 0 else approve("p_001")
        await decide(flow, job_id, [decision])
    assert len(await stack(flow, job_id)) == UNDO_DEPTH
    assert await flow.client.hlen(flow.keys.operations(job_id)) == UNDO_DEPTH
    # The only operation of p_002 was dropped, and with it its token.
    assert set(await undoable(flow, job_id)) == {"p_001"}
    for token in ("undo_0000000a", "undo_p_002"):
        assert (await undo(flow, job_id, token)).answer is MISSING
    undone = 0
    while (await undo(flow, job_id, "undo_p_001")).answer is OK:
        undone += 1
    assert undone == UNDO_DEPTH
    assert await undoable(flow, job_id) == {}
    assert (await item(flow, job_id, "p_001")).startswith("proposed")


async def test_an_undo_after_the_review_reopens_it(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, action=Action.APPROVE, token="0000000a")
    assert (await flow.record(job_id))["status"] == "running"
    assert (await undo(flow, job_id, "undo_p_002")).answer is OK
    record = await flow.record(job_id)
    assert (record["status"], record["current_step"]) == ("waiting_input", "review")
    assert (await flow.types(job_id))[-3:] == ["undo.applied", "step.reset", "job.waiting_input"]
    assert (await flow.events(job_id))[-1][2] == {"step": "review", "pending": 1}
    assert await flow.client.zcard(flow.keys.reviews) == 1
    outcome = await decide(flow, job_id, [reject("p_002")])
    assert outcome.facts["completed"]


async def test_a_review_stays_closed_without_undecided_items(flow: Flow) -> None:
    job_id = await in_review(flow, 0.5)
    await decide(flow, job_id, [approve("p_001")], step="second", token="0000000a")
    job_id = await with_proposals(flow, 0.5)
    await decide(flow, job_id, [approve("p_001")])
    await decide(flow, job_id, [reject("p_001")])
    await flow.execute(job_id, "review")
    assert (await undo(flow, job_id, "undo_p_001")).answer is OK
    assert (await item(flow, job_id, "p_001")).startswith("approved")
    assert (await flow.statuses(job_id))[2] == "complete"


async def test_items_used_by_a_running_step_cannot_be_undone(flow: Flow) -> None:
    job_id = await in_review_by_itself(flow)
    started = flow.started(job_id, await decide(flow, job_id, action=Action.APPROVE))
    snapshot = await flow.snapshot()
    outcome = await undo(flow, job_id, "undo_p_001")
    assert code(outcome) == "step_in_progress"
    assert outcome.facts["execution_id"] == started.execution
    assert await flow.snapshot() == snapshot


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_undo_after_a_failed_step_reopens_the_review(flow: Flow, cancelled: bool) -> None:
    job_id = await in_review_by_itself(flow)
    started = flow.started(job_id, await decide(flow, job_id, action=Action.APPROVE))
    await flow.store.fail(started, b'[{"code":"step_failed","message":"x"}]', cancelled)
    assert (await undo(flow, job_id, "undo_p_001")).answer is OK
    record = await flow.record(job_id)
    assert (record["status"], record["current_step"]) == ("waiting_input", "review")
    assert (record["completed_ms"], record["draft_state"]) == ("", "dirty")
    assert (await flow.statuses(job_id))[2:4] == [
        "waiting_input",
        "cancelled" if cancelled else "failed",
    ]
    again = flow.started(job_id, await decide(flow, job_id, [reject("p_001")]))
    assert again.step == "apply"


async def test_execute_does_not_skip_a_review_with_undone_items(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, action=Action.APPROVE, token="0000000a")
    await flow.run(job_id, "apply")
    await undo(flow, job_id, "undo_p_002")  # after the step: the review is unchanged
    assert (await flow.statuses(job_id))[2:4] == ["complete", "complete"]
    before = await flow.snapshot()
    strict = await flow.execute(job_id, "last", strict=True)
    assert (code(strict), strict.facts["step"]) == ("step_out_of_order", "review")
    assert await flow.snapshot() == before
    outcome = await flow.execute(job_id, "last")
    assert code(outcome) == "review_required"
    assert (outcome.facts["step"], outcome.facts["pending"]) == ("review", 1)
    assert (await flow.statuses(job_id))[2:] == ["waiting_input", "not_started", "not_started"]
    assert (await item(flow, job_id, "p_001")).startswith("approved")
    assert (await decide(flow, job_id, [reject("p_002")])).facts["completed"]
    assert (await flow.start(job_id, "apply")).step == "apply"


async def test_a_cancelled_job_can_be_undone_and_stays_cancelled(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, [approve("p_001")])
    await flow.store.cancel(job_id, once())
    assert (await undo(flow, job_id, "undo_p_001")).answer is OK
    assert (await flow.record(job_id))["status"] == "cancelled"


async def test_replaced_items_have_no_history(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, [approve("p_001")], token="0000000a")
    running = await flow.start(job_id, "second", discard_decisions=True)
    await flow.complete(running, proposed(0.5))
    assert await stack(flow, job_id) == []
    assert await undoable(flow, job_id) == {}
    for token in ("undo_0000000a", "undo_p_001"):
        assert (await undo(flow, job_id, token)).answer is MISSING
    # The new item cannot be confused with the old one of the same id.
    assert await item(flow, job_id, "p_001") == "proposed 3 0 0.500000"
    assert (await decide(flow, job_id, [approve("p_001", 1)])).facts["applied"] == []
    running = await flow.start(job_id, "second", discard_decisions=True)
    await flow.complete(running, proposed(0.5, 0.5))
    assert await item(flow, job_id, "p_002") == "proposed 4 0 0.500000"


async def test_a_repeated_undo_has_one_effect(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, [approve("p_001")])
    await decide(flow, job_id, [reject("p_001")])
    first = await undo(flow, job_id, "undo_p_001", once("k"))
    snapshot = await flow.snapshot()
    again = await undo(flow, job_id, "undo_p_001", once("k"))
    assert (again.answer, again.facts, again.replayed) == (OK, first.facts, True)
    other = await undo(flow, job_id, "undo_p_001", once("k", "another"))
    assert other.answer is WorkflowAnswer.REUSED
    assert await flow.snapshot() == snapshot


async def test_of_concurrent_undos_one_succeeds(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, [approve("p_001")], token="0000000a")
    outcomes = await asyncio.gather(*(undo(flow, job_id, "undo_0000000a") for _ in range(10)))
    answers = [outcome.answer for outcome in outcomes]
    assert (answers.count(OK), answers.count(MISSING)) == (1, 9)
    assert await item(flow, job_id, "p_001") == "proposed 3 0 0.500000"


async def test_thousands_of_items_are_undone_at_once(flow: Flow) -> None:
    job_id = await in_review(flow, *([0.5] * 1500))
    await decide(flow, job_id, action=Action.APPROVE, token="0000000a")
    await undo(flow, job_id, "undo_p_1000")
    outcome = await undo(flow, job_id, "undo_0000000a")
    assert len(outcome.facts["undone"]) == 1499
    assert outcome.facts["undone"][998:1000] == ["p_999", "p_1001"]
    assert await counters(flow, job_id) == (1500, 0, 0, 0, 0)
    assert "items" not in (await flow.events(job_id))[-3][2]


@pytest.mark.parametrize("name", ["undoable", "operations", "undo", "states", "items"])
async def test_a_key_of_the_wrong_type_fails_before_any_write(flow: Flow, name: str) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, [approve("p_001")])
    key = getattr(flow.keys, name)(job_id)
    await flow.client.delete(key)
    await flow.client.set(key, "no such thing")
    snapshot = await flow.snapshot()
    with pytest.raises(CorruptKey):
        await undo(flow, job_id, "undo_p_001")
    assert await flow.snapshot() == snapshot


async def test_a_listed_token_without_its_operation_is_unknown(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, [approve("p_001")], token="0000000a")
    await flow.client.delete(flow.keys.operations(job_id))
    for token in ("undo_0000000a", "undo_p_001"):
        assert (await undo(flow, job_id, token)).answer is MISSING
