"""UNDO with effects: only as a whole and only by a worker; decisions can be undone afterwards."""

from __future__ import annotations

from common.contracts.workflow.statuses import UNDO_DEPTH, Action
from common.features.workflows.effects import TermChange, undo_token_for
from common.features.workflows.types import StepExecution, StepResult, WorkflowAnswer
from tests.support.store.workflows import (
    ALREADY,
    MISSING,
    OK,
    REFUSED,
    WorkflowHarness,
    approve,
    once,
    reject,
)

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
    record = await workflow.record(job_id)
    assert (record["status"], record["draft_state"]) == ("completed", "dirty")
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
