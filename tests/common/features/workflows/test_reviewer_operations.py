"""DECIDE, EDIT and UNDO: repeated requests, and keys of the wrong type."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from common.errors import CorruptKey
from common.features.workflows.types import IdempotencyClaim, WorkflowOutcome
from tests.support.store.workflows import OK, REUSED, WorkflowHarness, approve, once, reject

Call = Callable[[WorkflowHarness, str, IdempotencyClaim], Awaitable[WorkflowOutcome]]
CALLS: dict[str, Call] = {
    "decide": lambda workflow, job_id, request: workflow.decide(
        job_id, [approve("p_002")], request=request
    ),
    "edit": lambda workflow, job_id, request: workflow.edit(job_id, "p_002", 1, request),
    "undo": lambda workflow, job_id, request: workflow.undo(job_id, "undo_p_001", request),
}
each = pytest.mark.parametrize("call", CALLS)


async def reviewed(workflow: WorkflowHarness) -> str:
    """A job in review with two changes that can be undone."""
    job_id = await workflow.in_review()
    await workflow.decide(job_id, [approve("p_001")])
    await workflow.decide(job_id, [reject("p_001")])
    return job_id


@each
async def test_a_repeated_request_has_one_effect(workflow: WorkflowHarness, call: str) -> None:
    job_id = await reviewed(workflow)
    first = await CALLS[call](workflow, job_id, once("k"))
    async with workflow.unchanged():
        again = await CALLS[call](workflow, job_id, once("k"))
        assert (again.answer, again.facts, again.replayed) == (OK, first.facts, True)
        other = await CALLS[call](workflow, job_id, once("k", "another"))
        assert other.answer is REUSED


@each
async def test_a_key_of_the_wrong_type_fails_before_any_write(
    workflow: WorkflowHarness, call: str
) -> None:
    names, job_id = workflow.keys, await reviewed(workflow)
    keys = [names.undoable, names.operations, names.undo, names.states, names.items]
    if call != "undo":
        keys.append(names.order)
    for key in keys:
        await workflow.client.rename(key(job_id), f"{names.tag}kept")
        await workflow.client.set(key(job_id), "spoilt")
        async with workflow.unchanged():
            with pytest.raises(CorruptKey):
                await CALLS[call](workflow, job_id, once())
        await workflow.client.rename(f"{names.tag}kept", key(job_id))
    assert (await CALLS[call](workflow, job_id, once())).answer is OK
