"""Effects and claims: recorded with their undo data; changes of others are not touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sluice.common import codec
from sluice.common.contracts.rag import MOST_TERMS, DocumentField
from sluice.common.contracts.workflow.statuses import WorkflowError
from sluice.common.features.workflows.effects import (
    MOST_PER_CALL,
    Effects,
    TermChange,
    undo_token_for,
)
from sluice.common.features.workflows.types import StepExecution, StepResult, WorkflowOutcome
from tests.support.store.workflows import (
    ALREADY,
    LOST,
    MISSING,
    OK,
    REFUSED,
    WorkflowHarness,
    once,
    proposals,
)


def change(field: str, after: str, before: str = "") -> TermChange:
    return TermChange(field, before.encode(), after.encode())


async def applying(workflow: WorkflowHarness, count: int = 0, job_id: str = "") -> StepExecution:
    """A job with the step `apply` running."""
    job_id = job_id or await workflow.create()
    await workflow.run(job_id, "first")
    await workflow.run(job_id, "second", proposals(count))
    await workflow.execute(job_id, "review")
    return await workflow.start(job_id, "apply")


async def store_document(
    workflow: WorkflowHarness, document_id: str, revision: str, tenant: str = ""
) -> None:
    """Store a document as a worker does."""
    keys = replace(workflow.rag, tenant=tenant)
    record = {DocumentField.ID: document_id, DocumentField.REVISION: revision}
    await workflow.client.hset(keys.documents, document_id, codec.dumps(record))
    for name in (keys.text(document_id), keys.chunks(document_id), keys.vectors(document_id)):
        await workflow.client.set(name, b"x")
    version = await workflow.client.incr(keys.version)
    await workflow.client.zadd(keys.order, {document_id: version})
    await workflow.client.sadd(keys.namespaces, keys.namespace)


async def version(workflow: WorkflowHarness) -> int:
    return int(await workflow.client.get(workflow.rag.version) or 0)


async def rag_keys(workflow: WorkflowHarness) -> list[bytes]:
    return sorted(await workflow.client.keys(f"{workflow.keys.tag}rag*"))


async def reverted(workflow: WorkflowHarness, running: StepExecution) -> list[str]:
    """Fail the execution, and revert its effects."""
    await workflow.store.fail(running, b"[]")
    return await workflow.effects.revert(running.job_id)


def refused(outcome: WorkflowOutcome) -> tuple[str, Any]:
    assert outcome.answer is REFUSED, outcome
    return outcome.facts["code"], outcome.facts.get("items")


async def test_terms_are_changed_and_their_old_values_kept(workflow: WorkflowHarness) -> None:
    effects, running = workflow.effects, await applying(workflow)
    await workflow.client.hset(workflow.rag.ontology, "queue", "old")
    changes = [change("dlq", "new"), change("queue", "newer", "old")]
    assert (await effects.change_terms(running, workflow.rag, changes)).answer is OK
    assert await workflow.terms() == {"dlq": "new", "queue": "newer"}
    assert await effects.for_execution(running) == Effects(
        {"dlq": (b"", b"new"), "queue": (b"old", b"newer")}, namespace="notes"
    )
    versions = await workflow.client.mget(workflow.rag.ontology_version, workflow.rag.version)
    assert len(set(versions)) == 1
    assert await workflow.client.smembers(workflow.rag.namespaces) == {b"notes"}
    assert await effects.jobs_with_effects() == [running.job_id]
    assert await workflow.without_ttl() == []


async def test_the_version_of_the_namespace_changes(workflow: WorkflowHarness) -> None:
    effects, running = workflow.effects, await applying(workflow)
    await store_document(workflow, "d1", "r1")
    before = await version(workflow)
    await effects.record_documents(running, workflow.rag, {"d2": "r2"})
    assert await version(workflow) == before
    changes = [change("dlq", "new")]
    await effects.change_terms(running, workflow.rag, changes)
    assert await version(workflow) == before + 1
    made = await effects.for_execution(running)
    assert (await effects.change_terms(running, workflow.rag, changes)).answer is OK  # a repeat
    assert await version(workflow) == before + 1
    assert await effects.for_execution(running) == made
    await reverted(workflow, running)
    assert await version(workflow) == before + 2
    assert await workflow.client.get(workflow.rag.ontology_version) is None


async def test_a_conflicting_term_fails_the_whole_call(workflow: WorkflowHarness) -> None:
    effects, running = workflow.effects, await applying(workflow)
    await workflow.client.hset(workflow.rag.ontology, "queue", "another's")
    async with workflow.unchanged():
        changes = [change("dlq", "new"), change("queue", "mine")]
        outcome = await effects.change_terms(running, workflow.rag, changes)
        assert refused(outcome) == (WorkflowError.VERSION_CONFLICT.value, ["queue"])


async def test_the_first_old_value_is_restored(workflow: WorkflowHarness) -> None:
    """But a value that was written in between is newer."""
    effects, running = workflow.effects, await applying(workflow)
    await workflow.client.hset(workflow.rag.ontology, "queue", "at first")
    changes = [change("dlq", "one"), change("queue", "mine", "at first")]
    await effects.change_terms(running, workflow.rag, changes)
    await workflow.client.hset(workflow.rag.ontology, "queue", "theirs")
    changes = [change("dlq", "two", "one"), change("queue", "mine again", "theirs")]
    await effects.change_terms(running, workflow.rag, changes)
    assert (await effects.for_execution(running)).terms["dlq"] == (b"", b"two")
    await reverted(workflow, running)
    assert await workflow.terms() == {"queue": "theirs"}
    # Any text is restored exactly.
    effects, running = workflow.effects, await applying(workflow)
    odd = 'a "quoted" \\ / é 東京 \u2028 \x01'
    await workflow.client.delete(workflow.rag.ontology)
    await workflow.client.hset(workflow.rag.ontology, 'é/"', odd)
    await effects.change_terms(running, workflow.rag, [change('é/"', odd + "!", odd)])
    await reverted(workflow, running)
    assert await workflow.terms() == {'é/"': odd}


async def test_incomplete_effects_are_reverted(workflow: WorkflowHarness) -> None:
    effects, running = workflow.effects, await applying(workflow)
    await workflow.client.hset(workflow.rag.ontology, mapping={"queue": "old", "gone": "there"})
    await store_document(workflow, "theirs", "r0")
    await effects.record_documents(running, workflow.rag, {"d1": "r1", "never": "r2"})
    await store_document(workflow, "d1", "r1")
    changes = [change("dlq", "new"), change("queue", "newer", "old"), change("gone", "", "there")]
    await effects.change_terms(running, workflow.rag, changes)
    assert await workflow.terms() == {"dlq": "new", "queue": "newer"}
    assert await effects.revert(running.job_id) == []  # it is still running
    assert await effects.jobs_with_effects() == [running.job_id]
    assert await reverted(workflow, running) == [undo_token_for(running.execution)]
    assert await workflow.terms() == {"queue": "old", "gone": "there"}
    assert await workflow.client.hkeys(workflow.rag.documents) == [b"theirs"]
    assert await workflow.client.zrange(workflow.rag.order, 0, -1) == [b"theirs"]
    own = (workflow.rag.text("d1"), workflow.rag.chunks("d1"), workflow.rag.vectors("d1"))
    assert not await workflow.client.exists(*own)
    assert await effects.jobs_with_effects() == []
    assert await effects.revert(running.job_id) == []


async def test_an_execution_may_revert_its_own_effects(workflow: WorkflowHarness) -> None:
    effects, running = workflow.effects, await applying(workflow)
    await effects.record_documents(running, workflow.rag, {"d1": "r1", "d2": "r2"})
    await effects.record_documents(running, workflow.rag, {"d1": ""})  # stored by another
    assert (await effects.for_execution(running)).documents == {"d2": "r2"}
    await effects.change_terms(running, workflow.rag, [change("dlq", "new")])
    assert await effects.revert(running.job_id, running)
    assert await workflow.terms() == {}
    assert not await effects.for_execution(running)


async def test_a_cancelled_job_or_empty_namespace_leaves_no_key(workflow: WorkflowHarness) -> None:
    effects, running = workflow.effects, await applying(workflow)
    await effects.change_terms(running, workflow.rag, [change("dlq", "new")])
    await workflow.store.cancel(running.job_id, once())
    for job_id in await effects.jobs_with_effects():
        await effects.revert(job_id)
    assert await rag_keys(workflow) == []
    effects, running = workflow.effects, await applying(workflow)
    keys = replace(workflow.rag, tenant="acme")
    await effects.record_documents(running, keys, {"d1": "r1"})
    await store_document(workflow, "d1", "r1", keys.tenant)
    await effects.change_terms(running, keys, [change("dlq", "new")])
    assert await workflow.client.smembers(keys.namespaces) == {b"notes"}
    await reverted(workflow, running)
    assert await rag_keys(workflow) == []


async def test_later_changes_of_others_are_kept(workflow: WorkflowHarness) -> None:
    effects, running = workflow.effects, await applying(workflow)
    await effects.record_documents(running, workflow.rag, {"d1": "r1", "d2": "r2"})
    await store_document(workflow, "d1", "r1")
    await store_document(workflow, "d2", "other")
    await effects.change_terms(
        running, workflow.rag, [change("dlq", "new"), change("queue", "new")]
    )
    await workflow.client.hset(workflow.rag.ontology, "queue", "a person's")
    await reverted(workflow, running)
    assert await workflow.terms() == {"queue": "a person's"}
    assert await workflow.client.hkeys(workflow.rag.documents) == [b"d2"]


async def test_only_the_current_execution_may_apply(workflow: WorkflowHarness) -> None:
    effects, running = workflow.effects, await applying(workflow)
    late = running._replace(execution="ex_00000000")
    async with workflow.unchanged():
        changes = [change("dlq", "new")]
        assert (await effects.change_terms(late, workflow.rag, changes)).answer is LOST
        nowhere = running._replace(job_id="wf_20260214_999")
        assert (await effects.change_terms(nowhere, workflow.rag, changes)).answer is MISSING
    await workflow.store.fail(running, b"[]")
    assert (await effects.change_terms(running, workflow.rag, changes)).answer is ALREADY
    assert await rag_keys(workflow) == []


async def test_a_completed_step_keeps_its_effects(workflow: WorkflowHarness) -> None:
    effects, running = workflow.effects, await applying(workflow)
    await effects.change_terms(running, workflow.rag, [change("dlq", "new")])
    token = undo_token_for(running.execution)
    done = await workflow.complete(running, StepResult("applied", undo_token=token))
    assert done.facts["undo_token"] == token
    assert await effects.revert(running.job_id) == []
    assert await effects.jobs_with_effects() == []
    assert await workflow.terms() == {"dlq": "new"}
    assert await workflow.client.lrange(workflow.keys.undo(running.job_id), 0, -1) == [
        token.encode()
    ]


@pytest.mark.real_redis
async def test_namespaces_and_terms_are_limited(workflow: WorkflowHarness) -> None:
    effects, running = workflow.effects, await applying(workflow)
    too_many = [change(str(n), "x") for n in range(MOST_PER_CALL + 1)]
    with pytest.raises(ValueError, match="at most"):
        await effects.change_terms(running, workflow.rag, too_many)
    await workflow.client.hset(
        workflow.rag.ontology, mapping={f"t{n}": "x" for n in range(MOST_TERMS)}
    )
    outcome = await effects.change_terms(running, workflow.rag, [change("dlq", "new")])
    assert refused(outcome)[0] == WorkflowError.NAMESPACE_FULL.value
    assert (await effects.change_terms(running, workflow.rag, [change("t1", "y", "x")])).facts == {}
    names = [f"n{number}" for number in range(1000)]
    await workflow.client.delete(workflow.rag.ontology, workflow.rag.namespaces)
    await workflow.client.sadd(workflow.rag.namespaces, *names)
    outcome = await effects.change_terms(running, workflow.rag, [change("dlq", "new")])
    assert refused(outcome)[0] == WorkflowError.TOO_MANY_NAMESPACES.value


async def test_keys_of_the_wrong_type_fail_before_any_write(workflow: WorkflowHarness) -> None:
    effects, running = workflow.effects, await applying(workflow)
    rag = workflow.rag
    applied = await workflow.needs(
        [rag.ontology, rag.documents, rag.version, rag.namespaces],
        lambda: effects.change_terms(running, rag, [change("dlq", "new")]),
        spoil="RPUSH",
    )
    assert applied.answer is OK
    # So do claims, when effects are reverted.
    await workflow.client.delete(rag.ontology)
    first = await making(workflow)
    await workflow.client.rpush(workflow.rag.claims, "foreign")
    await workflow.store.fail(first, b"[]")
    async with workflow.refuses():
        await workflow.effects.revert(first.job_id)


# -- Claims: what an operation found present and relies on is not reverted by its creator ---------


async def making(workflow: WorkflowHarness) -> StepExecution:
    """An execution that has created a document and a term."""
    effects, running = workflow.effects, await applying(workflow)
    await effects.record_documents(running, workflow.rag, {"d1": "r1"})
    await store_document(workflow, "d1", "r1")
    await effects.change_terms(running, workflow.rag, [change("dlq", "new")])
    return running


async def claiming(workflow: WorkflowHarness) -> StepExecution:
    """An execution that has claimed both."""
    effects, running = workflow.effects, await applying(workflow)
    assert (await effects.claim_documents(running, workflow.rag, {"d1": "r1"})).answer is OK
    same = [change("dlq", "new", "new")]
    assert (await effects.change_terms(running, workflow.rag, same)).answer is OK
    return running


async def test_a_claimed_document_passes_to_the_next_claim(workflow: WorkflowHarness) -> None:
    effects = workflow.effects
    first = await making(workflow)
    second, third = await claiming(workflow), await claiming(workflow)
    made = await effects.for_execution(second)
    assert (made.terms, made.documents, len(made.claims)) == ({}, {}, 2)
    for running in (first, second):
        await reverted(workflow, running)
        assert await workflow.terms() == {"dlq": "new"}
        assert await workflow.client.hkeys(workflow.rag.documents) == [b"d1"]
    made = await effects.for_execution(third)
    assert (made.terms, made.documents) == ({"dlq": (b"", b"new")}, {"d1": "r1"})
    assert await workflow.without_ttl() == []
    await reverted(workflow, third)
    assert await rag_keys(workflow) == []


async def test_a_repeated_claim_counts_once_a_reverted_one_never(workflow: WorkflowHarness) -> None:
    first, second = await making(workflow), await claiming(workflow)
    effects = workflow.effects
    before = await workflow.client.hgetall(workflow.rag.claims), await effects.for_execution(second)
    await effects.claim_documents(second, workflow.rag, {"d1": "r1"})
    after = await workflow.client.hgetall(workflow.rag.claims), await effects.for_execution(second)
    assert after == before
    await reverted(workflow, second)
    assert not await workflow.client.exists(workflow.rag.claims)
    await reverted(workflow, first)
    assert await rag_keys(workflow) == []


async def test_only_existing_documents_and_terms_can_be_claimed(workflow: WorkflowHarness) -> None:
    effects, running = workflow.effects, await applying(workflow)
    await store_document(workflow, "d1", "other")
    async with workflow.unchanged():
        outcome = await effects.claim_documents(running, workflow.rag, {"d1": "r1", "d2": "r2"})
        assert refused(outcome) == (WorkflowError.VERSION_CONFLICT.value, ["d1", "d2"])
        outcome = await effects.change_terms(running, workflow.rag, [change("dlq", "new", "new")])
        assert refused(outcome) == (WorkflowError.VERSION_CONFLICT.value, ["dlq"])


@pytest.mark.real_redis
async def test_claims_beyond_the_limit_are_permanent(workflow: WorkflowHarness) -> None:
    """Claims beyond the maximum are not counted: the document stays for good."""
    first = await making(workflow)
    many = [await claiming(workflow) for _ in range(18)]
    claims = await workflow.client.hvals(workflow.rag.claims)
    assert [len(each.split(b",")) for each in claims] == [17, 17]
    for running in (first, *many):
        await reverted(workflow, running)
    assert await workflow.terms() == {"dlq": "new"}
    assert await workflow.client.hkeys(workflow.rag.documents) == [b"d1"]


async def test_a_claim_by_a_corrupt_job_is_permanent(workflow: WorkflowHarness) -> None:
    first, second = await making(workflow), await claiming(workflow)
    await workflow.client.delete(workflow.keys.operations(second.job_id))
    await workflow.client.set(workflow.keys.operations(second.job_id), "foreign")
    await reverted(workflow, first)
    assert await workflow.terms() == {"dlq": "new"}
