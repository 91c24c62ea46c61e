"""UNDO: restores items or whole operations, but never discards later changes of others."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.common.contracts.workflow.statuses import UNDO_DEPTH, Action
from sluice.common.features.workflows.effects import TermChange, undo_token_for
from sluice.common.features.workflows.types import (
    StepExecution,
    StepResult,
    WorkflowAnswer,
    WorkflowOutcome,
)
from tests.support.store.workflows import (
    ALREADY,
    MISSING,
    OK,
    REFUSED,
    WorkflowHarness,
    approve,
    once,
    proposed,
    reject,
    reset,
)


def code(outcome: WorkflowOutcome) -> Any:
    assert outcome.answer is REFUSED, outcome
    return outcome.facts["code"]


async def test_a_whole_operation_is_undone(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    await workflow.decide(job_id, [approve("p_001"), reject("p_002")], token="00c0ffee")
    before = len(await workflow.events(job_id))
    outcome = await workflow.undo(job_id, "undo_00c0ffee")
    assert outcome[:2] == (OK, {"undone": ["p_001", "p_002"], "token": "undo_00c0ffee"})
    assert await workflow.item(job_id, "p_001") == "proposed 3 0 0.500000"
    assert await workflow.item(job_id, "p_002") == "proposed 3 0 0.500000"
    assert await workflow.counters(job_id) == (3, 0, 0, 0, 0)
    assert await workflow.stack(job_id) == []
    assert await workflow.undoable(job_id) == {}
    assert await workflow.client.hlen(workflow.keys.operations(job_id)) == 0
    assert (await workflow.events(job_id))[before:] == [
        (
            "undo.applied",
            "second",
            {"undo_token": "undo_00c0ffee", "items": ["p_001", "p_002"], "count": 2},
        )
    ]
    assert (await workflow.step(job_id, "review"))["done"] == "0"
    async with workflow.unchanged():  # a token works once
        for token in ("undo_00c0ffee", "undo_p_001", "undo_p_404", "undo_", "", "p_001", "undo_*"):
            outcome = await workflow.undo(job_id, token)
            assert outcome[:2] == (MISSING, {"what": "unknown_undo_token"}), token
        missing = await workflow.undo("wf_20260214_999", "undo_p_001")
        assert missing.facts == {"what": "job_not_found"}
    # A listed token without its operation is unknown.
    await workflow.decide(job_id, [approve("p_001")], token="0000000a")
    await workflow.client.delete(workflow.keys.operations(job_id))
    for token in ("undo_0000000a", "undo_p_001"):
        assert (await workflow.undo(job_id, token)).answer is MISSING


async def test_changes_of_an_item_are_undone_one_by_one(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    original = await workflow.payload(job_id, "p_001")
    await workflow.decide(job_id, [approve("p_001"), approve("p_002")])
    await workflow.edit(job_id, "p_001", 2, payload=b'{"n":"a"}', confidence=0.9)
    await workflow.decide(job_id, [reject("p_001")])
    await workflow.edit(job_id, "p_001", 4, payload=b'{"n":"b"}', auto_approve=False)
    expected = [
        ("rejected 6 1 0.900000", {"n": "a"}),
        ("approved 7 1 0.900000", {"n": "a"}),
        ("approved 8 0 0.500000", original),
        ("proposed 9 0 0.500000", original),
    ]
    for state, content in expected:
        assert (await workflow.undo(job_id, "undo_p_001")).facts["undone"] == ["p_001"]
        assert await workflow.item(job_id, "p_001") == state
        assert await workflow.payload(job_id, "p_001") == content
    assert (await workflow.undo(job_id, "undo_p_001")).answer is MISSING
    assert await workflow.item(job_id, "p_002") == "approved 2 0 0.500000"
    assert set(await workflow.undoable(job_id)) == {"p_002"}
    assert len(await workflow.stack(job_id)) == 1


async def test_a_later_change_prevents_an_undo(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    await workflow.decide(job_id, [approve("p_001"), approve("p_002")], token="0000000a")
    await workflow.decide(job_id, [reject("p_002")], token="0000000b")
    async with workflow.unchanged():
        outcome = await workflow.undo(job_id, "undo_0000000a")
        assert outcome[:2] == (REFUSED, {"code": "undo_conflict", "items": ["p_002"]})
    # Once the later change is undone, the earlier one can be undone too.
    assert (await workflow.undo(job_id, "undo_0000000b")).answer is OK
    assert (await workflow.undo(job_id, "undo_0000000a")).facts["undone"] == ["p_001", "p_002"]
    assert await workflow.item(job_id, "p_002") == "proposed 5 0 0.500000"
    # An item undone alone leaves its operation.
    job_id = await workflow.in_review()
    await workflow.decide(job_id, [approve("p_001"), approve("p_002")], token="0000000a")
    await workflow.undo(job_id, "undo_p_001")
    await workflow.decide(job_id, [reject("p_001")])
    assert (await workflow.undo(job_id, "undo_0000000a")).facts["undone"] == ["p_002"]
    assert (await workflow.item(job_id, "p_001")).startswith("rejected")


@pytest.mark.real_redis
async def test_the_oldest_operations_can_no_longer_be_undone(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    await workflow.decide(job_id, [approve("p_002")], token="0000000a")
    await workflow.decide(job_id, [approve("p_001")], token="0000000b")
    for number in range(UNDO_DEPTH - 1):
        decision = reset("p_001") if number % 2 == 0 else approve("p_001")
        await workflow.decide(job_id, [decision])
    assert len(await workflow.stack(job_id)) == UNDO_DEPTH
    assert await workflow.client.hlen(workflow.keys.operations(job_id)) == UNDO_DEPTH
    # The only operation of p_002 was dropped, and with it its token.
    assert set(await workflow.undoable(job_id)) == {"p_001"}
    for token in ("undo_0000000a", "undo_p_002"):
        assert (await workflow.undo(job_id, token)).answer is MISSING
    undone = 0
    while (await workflow.undo(job_id, "undo_p_001")).answer is OK:
        undone += 1
    assert undone == UNDO_DEPTH
    assert await workflow.undoable(job_id) == {}
    assert (await workflow.item(job_id, "p_001")).startswith("proposed")


async def test_an_undo_after_the_review_reopens_it(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    await workflow.decide(job_id, action=Action.APPROVE, token="0000000a")
    assert (await workflow.record(job_id))["status"] == "running"
    assert (await workflow.undo(job_id, "undo_p_002")).answer is OK
    await workflow.has(job_id, status="waiting_input", current_step="review")
    assert (await workflow.types(job_id))[-3:] == [
        "undo.applied",
        "step.reset",
        "job.waiting_input",
    ]
    assert (await workflow.events(job_id))[-1][2] == {"step": "review", "pending": 1}
    assert await workflow.client.zcard(workflow.keys.reviews) == 1
    assert (await workflow.decide(job_id, [reject("p_002")])).facts["completed"]
    # It stays closed if no item is undecided.
    job_id = await workflow.with_proposals(0.5)
    await workflow.decide(job_id, [approve("p_001")])
    await workflow.decide(job_id, [reject("p_001")])
    await workflow.execute(job_id, "review")
    assert (await workflow.undo(job_id, "undo_p_001")).answer is OK
    assert (await workflow.item(job_id, "p_001")).startswith("approved")
    assert (await workflow.statuses(job_id))[2] == "complete"


async def test_items_used_by_a_running_step_cannot_be_undone(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review_by_itself()
    started = workflow.started(job_id, await workflow.decide(job_id, action=Action.APPROVE))
    async with workflow.unchanged():
        outcome = await workflow.undo(job_id, "undo_p_001")
        assert code(outcome) == "step_in_progress"
        assert outcome.facts["execution_id"] == started.execution


@pytest.mark.parametrize("cancelled", [False, True])
async def test_undo_reopens_after_a_failed_step(workflow: WorkflowHarness, cancelled: bool) -> None:
    job_id = await workflow.in_review_by_itself()
    started = workflow.started(job_id, await workflow.decide(job_id, action=Action.APPROVE))
    await workflow.store.fail(started, b'[{"code":"step_failed","message":"x"}]', cancelled)
    assert (await workflow.undo(job_id, "undo_p_001")).answer is OK
    await workflow.has(
        job_id, status="waiting_input", current_step="review", completed_ms="", draft_state="dirty"
    )
    assert (await workflow.statuses(job_id))[2:4] == [
        "waiting_input",
        "cancelled" if cancelled else "failed",
    ]
    again = workflow.started(job_id, await workflow.decide(job_id, [reject("p_001")]))
    assert again.step == "apply"


async def test_execute_does_not_skip_a_review_with_undone_items(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    await workflow.decide(job_id, action=Action.APPROVE, token="0000000a")
    await workflow.run(job_id, "apply")
    await workflow.undo(job_id, "undo_p_002")  # after the step: the review is unchanged
    assert (await workflow.statuses(job_id))[2:4] == ["complete", "complete"]
    async with workflow.unchanged():
        strict = await workflow.execute(job_id, "last", strict=True)
        assert (code(strict), strict.facts["step"]) == ("step_out_of_order", "review")
    outcome = await workflow.execute(job_id, "last")
    assert code(outcome) == "review_required"
    assert (outcome.facts["step"], outcome.facts["pending"]) == ("review", 1)
    assert (await workflow.statuses(job_id))[2:] == ["waiting_input", "not_started", "not_started"]
    assert (await workflow.item(job_id, "p_001")).startswith("approved")
    assert (await workflow.decide(job_id, [reject("p_002")])).facts["completed"]
    assert (await workflow.start(job_id, "apply")).step == "apply"


async def test_a_cancelled_job_can_be_undone_and_stays_cancelled(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    await workflow.decide(job_id, [approve("p_001")])
    await workflow.store.cancel(job_id, once())
    assert (await workflow.undo(job_id, "undo_p_001")).answer is OK
    assert (await workflow.record(job_id))["status"] == "cancelled"


async def test_replaced_items_have_no_history(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    await workflow.decide(job_id, [approve("p_001")], token="0000000a")
    running = await workflow.start(job_id, "second", discard_decisions=True)
    await workflow.complete(running, proposed(0.5))
    assert await workflow.stack(job_id) == []
    assert await workflow.undoable(job_id) == {}
    for token in ("undo_0000000a", "undo_p_001"):
        assert (await workflow.undo(job_id, token)).answer is MISSING
    # The new item cannot be confused with the old one of the same id.
    assert await workflow.item(job_id, "p_001") == "proposed 3 0 0.500000"
    assert (await workflow.decide(job_id, [approve("p_001", 1)])).facts["applied"] == []
    running = await workflow.start(job_id, "second", discard_decisions=True)
    await workflow.complete(running, proposed(0.5, 0.5))
    assert await workflow.item(job_id, "p_002") == "proposed 4 0 0.500000"


@pytest.mark.real_redis
async def test_thousands_of_items_are_undone_at_once(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review(*([0.5] * 1500))
    await workflow.decide(job_id, action=Action.APPROVE, token="0000000a")
    await workflow.undo(job_id, "undo_p_1000")
    outcome = await workflow.undo(job_id, "undo_0000000a")
    assert len(outcome.facts["undone"]) == 1499
    assert outcome.facts["undone"][998:1000] == ["p_999", "p_1001"]
    assert await workflow.counters(job_id) == (1500, 0, 0, 0, 0)
    assert "items" not in (await workflow.events(job_id))[-3][2]


# -- With effects: only as a whole and only by a worker; decisions can be undone afterwards -------


APPLIED = [("p_001", "applied", 2), ("p_002", "applied", 2)]


async def applied(workflow: WorkflowHarness, ends: bool = False) -> tuple[str, str]:
    """A job with two of three items applied, and the token of that."""
    job_id = await workflow.in_review()
    await workflow.decide(
        job_id, [approve("p_001"), approve("p_002"), reject("p_003")], token="0000000a"
    )
    running = await workflow.start(job_id, "apply")
    await workflow.effects.change_terms(running, workflow.rag, [TermChange("dlq", b"", b"new")])
    token = undo_token_for(running.execution)
    done = await workflow.complete(
        running, StepResult("2 applied", changed=APPLIED, undo_token=token)
    )
    assert done.facts["undo_token"] == token
    if ends:
        await workflow.run(job_id, "last")
    return job_id, token


async def test_a_worker_undoes_items_and_effects_together(workflow: WorkflowHarness) -> None:
    job_id, token = await applied(workflow, ends=True)
    assert await workflow.counters(job_id) == (0, 0, 1, 2, 0)
    assert (await workflow.record(job_id))["draft_state"] == "clean"
    async with workflow.unchanged():
        beyond = await workflow.undo(job_id, token, once("k"))
        assert beyond[:2] == (WorkflowAnswer.BEYOND, {"token": token})
        await workflow.client.delete(once("k").key)
    outcome = await workflow.store.undo_with_effects(job_id, token)
    assert outcome[:2] == (OK, {"undone": ["p_001", "p_002"], "token": token})
    assert await workflow.terms() == {}
    assert await workflow.item(job_id, "p_001") == "approved 4 0 0.500000"
    await workflow.has(job_id, status="completed", draft_state="dirty")
    assert (await workflow.step(job_id, "apply"))["undo_token"] == ""
    assert await workflow.stack(job_id) == ["undo_0000000a"]
    assert (await workflow.types(job_id))[-1] == "undo.applied"
    # A repeated call gets the same answer.
    async with workflow.unchanged():
        again = await workflow.store.undo_with_effects(job_id, token)
        assert again[:2] == (ALREADY, {"undone": ["p_001", "p_002"], "token": token})
        assert (await workflow.undo(job_id, token)).answer is MISSING  # for others it is used up
        assert (await workflow.store.undo_with_effects(job_id, "undo_ffffffff")).answer is MISSING
        assert (await workflow.store.undo_with_effects("wf_20260214_999", token)).answer is MISSING


async def test_the_latest_undone_operations_are_remembered(workflow: WorkflowHarness) -> None:
    job_id, token = await applied(workflow)
    key = workflow.keys.operations(job_id)
    older = {f"undo_{number:08x}": b'{"undone":{},"ms":%d}' % number for number in range(1, 40)}
    await workflow.client.hset(key, mapping=older)
    assert (await workflow.store.undo_with_effects(job_id, token)).answer is OK
    left = {name.decode() for name in await workflow.client.hkeys(key)}
    assert left == {"undo_0000000a", token, *sorted(older)[-UNDO_DEPTH + 1 :]}
    assert (await workflow.store.undo_with_effects(job_id, token)).answer is ALREADY


async def test_an_operation_with_effects_is_not_undone_per_item(workflow: WorkflowHarness) -> None:
    job_id, token = await applied(workflow)
    assert (await workflow.undoable(job_id))["p_001"] == f"!{token}"
    async with workflow.unchanged():
        outcome = await workflow.undo(job_id, "undo_p_001")
        assert outcome[:2] == (
            REFUSED,
            {"code": "undo_conflict", "items": ["p_001", "p_002"], "token": token},
        )
        assert (await workflow.store.undo_with_effects(job_id, "undo_p_001")).answer is REFUSED


async def test_decisions_can_be_undone_after_the_step(workflow: WorkflowHarness) -> None:
    job_id, token = await applied(workflow)
    outcome = await workflow.undo(job_id, "undo_p_003")
    assert outcome[:2] == (REFUSED, {"code": "undo_conflict", "items": ["p_003"], "token": token})
    assert (await workflow.undo(job_id, "undo_0000000a")).facts["items"] == ["p_001", "p_002"]
    await workflow.store.undo_with_effects(job_id, token)
    assert (await workflow.undo(job_id, "undo_p_003")).answer is OK
    assert (await workflow.undo(job_id, "undo_p_001")).answer is OK
    assert (await workflow.undo(job_id, "undo_0000000a")).facts["undone"] == ["p_002"]
    assert await workflow.counters(job_id) == (3, 0, 0, 0, 0)
    # Later steps stay done: only executing the review again reopens it.
    assert (await workflow.statuses(job_id))[2:4] == ["complete", "complete"]
    assert (await workflow.execute(job_id, "review")).facts["pending"] == 3


async def test_changes_of_others_outside_the_workflow_are_kept(workflow: WorkflowHarness) -> None:
    job_id, token = await applied(workflow)
    await workflow.client.hset(workflow.rag.ontology, "dlq", "theirs")
    async with workflow.unchanged():
        outcome = await workflow.store.undo_with_effects(job_id, token)
        assert outcome[:2] == (REFUSED, {"code": "undo_conflict", "items": ["dlq"]})


async def test_a_running_operation_cannot_be_undone(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    await workflow.decide(job_id, action=Action.APPROVE)
    running: StepExecution = await workflow.start(job_id, "apply")
    await workflow.effects.change_terms(running, workflow.rag, [TermChange("dlq", b"", b"new")])
    token = undo_token_for(running.execution)
    async with workflow.unchanged():
        assert (await workflow.undo(job_id, token)).answer is MISSING
        assert (await workflow.store.undo_with_effects(job_id, token)).answer is MISSING


async def test_items_changed_without_undo_data_cannot_be_undone(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    await workflow.decide(job_id, action=Action.APPROVE, token="0000000a")
    done = StepResult("for good", changed=[("p_001", "applied", 2)])
    await workflow.run(job_id, "apply", done)
    outcome = await workflow.undo(job_id, "undo_0000000a")
    assert outcome[:2] == (REFUSED, {"code": "undo_conflict", "items": ["p_001"]})
    assert (await workflow.undo(job_id, "undo_p_001")).answer is MISSING
    assert (await workflow.undo(job_id, "undo_p_002")).answer is OK


async def test_a_step_without_effects_is_undone_per_item(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    await workflow.decide(job_id, action=Action.APPROVE)
    done = StepResult("applied", changed=APPLIED, undo_token="undo_0000000b")
    await workflow.run(job_id, "apply", done)
    assert (await workflow.undo(job_id, "undo_p_001")).answer is OK
    assert (await workflow.undo(job_id, "undo_0000000b")).facts["undone"] == ["p_002"]
    assert await workflow.counters(job_id) == (0, 3, 0, 0, 3)


async def test_effects_of_replaced_items_can_still_be_undone(workflow: WorkflowHarness) -> None:
    job_id, token = await applied(workflow)
    running = await workflow.start(job_id, "second", discard_decisions=True)
    assert await workflow.stack(job_id) == [token]
    assert (await workflow.store.undo_with_effects(job_id, token))[:2] == (
        OK,
        {"undone": [], "token": token},
    )
    assert await workflow.terms() == {}
    assert (await workflow.store.undo_with_effects(job_id, token)).facts["undone"] == []
    assert (await workflow.complete(running)).answer is OK
