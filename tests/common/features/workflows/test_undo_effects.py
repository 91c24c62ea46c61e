"""UNDO with effects: only as a whole and only by a worker; decisions can be undone afterwards."""

from __future__ import annotations

from common.contracts.workflow.statuses import UNDO_DEPTH, Action
from common.features.workflows.effects import EffectStore, TermChange, undo_token_for
from common.features.workflows.types import StepExecution, StepResult, WorkflowAnswer
from tests.common.features.workflows.item_kit import (
    MISSING,
    OK,
    REFUSED,
    approve,
    counters,
    decide,
    in_review,
    item,
    reject,
    stack,
    undo,
    undoable,
)
from tests.common.features.workflows.kit import Flow, once

APPLIED = [("p_001", "applied", 2), ("p_002", "applied", 2)]


async def applied(flow: Flow, ends: bool = False) -> tuple[str, str]:
    """A job with two of three items applied, and the token of that."""
    job_id = await in_review(flow)
    await decide(
        flow, job_id, [approve("p_001"), approve("p_002"), reject("p_003")], token="0000000a"
    )
    running = await flow.start(job_id, "apply")
    effects = EffectStore(flow.client, flow.store)
    await effects.change_terms(running, flow.rag, [TermChange("dlq", b"", b"new")])
    token = undo_token_for(running.execution)
    done = await flow.complete(running, StepResult("2 applied", changed=APPLIED, undo_token=token))
    assert done.facts["undo_token"] == token
    if ends:
        await flow.run(job_id, "last")
    return job_id, token


async def terms(flow: Flow) -> dict[bytes, bytes]:
    return dict(await flow.client.hgetall(flow.rag.ontology))


async def test_a_worker_undoes_items_and_effects_together(flow: Flow) -> None:
    job_id, token = await applied(flow, ends=True)
    assert await counters(flow, job_id) == (0, 0, 1, 2, 0)
    assert (await flow.record(job_id))["draft_state"] == "clean"
    snapshot = await flow.snapshot()
    outcome = await undo(flow, job_id, token, once("k"))
    assert outcome[:2] == (WorkflowAnswer.BEYOND, {"token": token})
    assert {**await flow.snapshot(), b"{0}:idempotency.wf:x:k": None} == {
        **snapshot,
        b"{0}:idempotency.wf:x:k": None,
    }
    outcome = await flow.store.undo_with_effects(job_id, token)
    assert outcome[:2] == (OK, {"undone": ["p_001", "p_002"], "token": token})
    assert await terms(flow) == {}
    assert await item(flow, job_id, "p_001") == "approved 4 0 0.500000"
    record = await flow.record(job_id)
    assert (record["status"], record["draft_state"]) == ("completed", "dirty")
    assert (await flow.step(job_id, "apply"))["undo_token"] == ""
    assert await stack(flow, job_id) == ["undo_0000000a"]
    assert (await flow.types(job_id))[-1] == "undo.applied"


async def test_a_repeated_undo_by_a_worker_gets_the_same_answer(flow: Flow) -> None:
    job_id, token = await applied(flow)
    await flow.store.undo_with_effects(job_id, token)
    snapshot = await flow.snapshot()
    again = await flow.store.undo_with_effects(job_id, token)
    assert again[:2] == (WorkflowAnswer.ALREADY, {"undone": ["p_001", "p_002"], "token": token})
    assert (await undo(flow, job_id, token)).answer is MISSING  # for others it is used up
    assert (await flow.store.undo_with_effects(job_id, "undo_ffffffff")).answer is MISSING
    assert (await flow.store.undo_with_effects("wf_20260214_999", token)).answer is MISSING
    assert await flow.snapshot() == snapshot


async def test_the_latest_undone_operations_are_remembered(flow: Flow) -> None:
    job_id, token = await applied(flow)
    key = flow.keys.operations(job_id)
    older = {f"undo_{number:08x}": b'{"undone":{},"ms":%d}' % number for number in range(1, 40)}
    await flow.client.hset(key, mapping=older)
    assert (await flow.store.undo_with_effects(job_id, token)).answer is OK
    left = {name.decode() for name in await flow.client.hkeys(key)}
    assert left == {"undo_0000000a", token, *sorted(older)[-UNDO_DEPTH + 1 :]}
    assert (await flow.store.undo_with_effects(job_id, token)).answer is WorkflowAnswer.ALREADY


async def test_an_operation_with_effects_is_not_undone_per_item(flow: Flow) -> None:
    job_id, token = await applied(flow)
    assert (await undoable(flow, job_id))["p_001"] == f"!{token}"
    snapshot = await flow.snapshot()
    outcome = await undo(flow, job_id, "undo_p_001")
    assert outcome[:2] == (
        REFUSED,
        {"code": "undo_conflict", "items": ["p_001", "p_002"], "token": token},
    )
    assert (await flow.store.undo_with_effects(job_id, "undo_p_001")).answer is REFUSED
    assert await flow.snapshot() == snapshot


async def test_decisions_can_be_undone_after_the_step(flow: Flow) -> None:
    job_id, token = await applied(flow)
    outcome = await undo(flow, job_id, "undo_p_003")
    assert outcome[:2] == (
        REFUSED,
        {"code": "undo_conflict", "items": ["p_003"], "token": token},
    )
    assert (await undo(flow, job_id, "undo_0000000a")).facts["items"] == ["p_001", "p_002"]
    await flow.store.undo_with_effects(job_id, token)
    assert (await undo(flow, job_id, "undo_p_003")).answer is OK
    assert (await undo(flow, job_id, "undo_p_001")).answer is OK
    assert (await undo(flow, job_id, "undo_0000000a")).facts["undone"] == ["p_002"]
    assert await counters(flow, job_id) == (3, 0, 0, 0, 0)
    # Later steps stay done: only executing the review again reopens it.
    assert (await flow.statuses(job_id))[2:4] == ["complete", "complete"]
    assert (await flow.execute(job_id, "review")).facts["pending"] == 3


async def test_changes_of_others_outside_the_workflow_are_kept(flow: Flow) -> None:
    job_id, token = await applied(flow)
    await flow.client.hset(flow.rag.ontology, "dlq", "theirs")
    snapshot = await flow.snapshot()
    outcome = await flow.store.undo_with_effects(job_id, token)
    assert outcome[:2] == (REFUSED, {"code": "undo_conflict", "items": ["dlq"]})
    assert await flow.snapshot() == snapshot


async def test_a_running_operation_cannot_be_undone(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, action=Action.APPROVE)
    running: StepExecution = await flow.start(job_id, "apply")
    effects = EffectStore(flow.client, flow.store)
    await effects.change_terms(running, flow.rag, [TermChange("dlq", b"", b"new")])
    token = undo_token_for(running.execution)
    snapshot = await flow.snapshot()
    assert (await undo(flow, job_id, token)).answer is MISSING
    assert (await flow.store.undo_with_effects(job_id, token)).answer is MISSING
    assert await flow.snapshot() == snapshot


async def test_items_changed_without_undo_data_cannot_be_undone(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, action=Action.APPROVE, token="0000000a")
    done = StepResult("for good", changed=[("p_001", "applied", 2)])
    await flow.run(job_id, "apply", done)
    outcome = await undo(flow, job_id, "undo_0000000a")
    assert outcome[:2] == (REFUSED, {"code": "undo_conflict", "items": ["p_001"]})
    assert (await undo(flow, job_id, "undo_p_001")).answer is MISSING
    assert (await undo(flow, job_id, "undo_p_002")).answer is OK


async def test_a_step_without_effects_is_undone_per_item(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, action=Action.APPROVE)
    done = StepResult("applied", changed=APPLIED, undo_token="undo_0000000b")
    await flow.run(job_id, "apply", done)
    assert (await undo(flow, job_id, "undo_p_001")).answer is OK
    assert (await undo(flow, job_id, "undo_0000000b")).facts["undone"] == ["p_002"]
    assert await counters(flow, job_id) == (0, 3, 0, 0, 3)


async def test_effects_of_replaced_items_can_still_be_undone(flow: Flow) -> None:
    job_id, token = await applied(flow)
    running = await flow.start(job_id, "second", discard_decisions=True)
    assert await stack(flow, job_id) == [token]
    assert (await flow.store.undo_with_effects(job_id, token))[:2] == (
        OK,
        {"undone": [], "token": token},
    )
    assert await terms(flow) == {}
    assert (await flow.store.undo_with_effects(job_id, token)).facts["undone"] == []
    assert (await flow.complete(running)).answer is OK
