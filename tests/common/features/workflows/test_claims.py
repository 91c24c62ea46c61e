"""Claims: what an operation found present and relies on is not reverted by its creator."""

from __future__ import annotations

import pytest

from common.contracts.workflow.statuses import WorkflowError
from common.errors import CorruptKey
from common.features.workflows.types import StepExecution, WorkflowAnswer
from tests.common.features.workflows.kit import Flow
from tests.common.features.workflows.test_effects import (
    applying,
    change,
    effects_of,
    rag_keys,
    refused,
    reverted,
    store_document,
    terms,
)


async def making(flow: Flow) -> StepExecution:
    """An execution that has created a document and a term."""
    effects, running = effects_of(flow), await applying(flow)
    await effects.record_documents(running, flow.rag, {"d1": "r1"})
    await store_document(flow, "d1", "r1")
    await effects.change_terms(running, flow.rag, [change("dlq", "new")])
    return running


async def claiming(flow: Flow) -> StepExecution:
    """An execution that has claimed both."""
    effects, running = effects_of(flow), await applying(flow)
    assert (
        await effects.claim_documents(running, flow.rag, {"d1": "r1"})
    ).answer is WorkflowAnswer.OK
    same = [change("dlq", "new", "new")]
    assert (await effects.change_terms(running, flow.rag, same)).answer is WorkflowAnswer.OK
    return running


async def test_a_claimed_document_passes_to_the_next_claim(flow: Flow) -> None:
    effects = effects_of(flow)
    first, second, third = [await making(flow), await claiming(flow), await claiming(flow)]
    made = await effects.for_execution(second)
    assert (made.terms, made.documents, len(made.claims)) == ({}, {}, 2)
    for running in (first, second):
        await reverted(flow, running)
        assert await terms(flow) == {"dlq": "new"}
        assert await flow.client.hkeys(flow.rag.documents) == [b"d1"]
    made = await effects.for_execution(third)
    assert (made.terms, made.documents) == ({"dlq": (b"", b"new")}, {"d1": "r1"})
    assert await flow.without_ttl() == []
    await reverted(flow, third)
    assert await rag_keys(flow) == []


async def test_a_reverted_claim_protects_nothing(flow: Flow) -> None:
    first, second = await making(flow), await claiming(flow)
    await reverted(flow, second)
    assert not await flow.client.exists(flow.rag.claims)
    await reverted(flow, first)
    assert await rag_keys(flow) == []


async def test_a_repeated_claim_counts_once(flow: Flow) -> None:
    await making(flow)
    second, effects = await claiming(flow), effects_of(flow)
    before = await flow.client.hgetall(flow.rag.claims), await effects.for_execution(second)
    await effects.claim_documents(second, flow.rag, {"d1": "r1"})
    assert (
        await flow.client.hgetall(flow.rag.claims),
        await effects.for_execution(second),
    ) == before


async def test_only_existing_documents_and_terms_can_be_claimed(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    await store_document(flow, "d1", "other")
    before = await flow.snapshot()
    outcome = await effects.claim_documents(running, flow.rag, {"d1": "r1", "d2": "r2"})
    assert refused(outcome) == (WorkflowError.VERSION_CONFLICT.value, ["d1", "d2"])
    outcome = await effects.change_terms(running, flow.rag, [change("dlq", "new", "new")])
    assert refused(outcome) == (WorkflowError.VERSION_CONFLICT.value, ["dlq"])
    assert await flow.snapshot() == before


async def test_claims_beyond_the_limit_are_permanent(flow: Flow) -> None:
    """Claims beyond the maximum are not counted: the document stays for good."""
    first = await making(flow)
    many = [await claiming(flow) for _ in range(20)]
    claims = await flow.client.hvals(flow.rag.claims)
    assert [len(each.split(b",")) for each in claims] == [17, 17]
    for running in (first, *many):
        await reverted(flow, running)
    assert await terms(flow) == {"dlq": "new"}
    assert await flow.client.hkeys(flow.rag.documents) == [b"d1"]


async def test_a_key_of_the_wrong_type_fails_before_any_write(flow: Flow) -> None:
    first = await making(flow)
    await flow.client.rpush(flow.rag.claims, "foreign")
    await flow.store.fail(first, b"[]")
    before = await flow.snapshot()
    with pytest.raises(CorruptKey):
        await effects_of(flow).revert(first.job_id)
    assert await flow.snapshot() == before


async def test_a_claim_by_a_corrupt_job_is_permanent(flow: Flow) -> None:
    first, second = await making(flow), await claiming(flow)
    await flow.client.delete(flow.keys.operations(second.job_id))
    await flow.client.set(flow.keys.operations(second.job_id), "foreign")
    await reverted(flow, first)
    assert await terms(flow) == {"dlq": "new"}
