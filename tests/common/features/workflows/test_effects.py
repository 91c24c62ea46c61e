"""Effects: recorded together with their undo data; changes of others are not touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common import codec
from common.contracts.rag import MOST_TERMS, DocumentField
from common.contracts.workflow.statuses import WorkflowError
from common.errors import CorruptKey
from common.features.workflows.effects import (
    MOST_PER_CALL,
    Effects,
    EffectStore,
    TermChange,
    undo_token_for,
)
from common.features.workflows.scripts import render_script
from common.features.workflows.types import (
    StepExecution,
    StepResult,
    WorkflowAnswer,
    WorkflowOutcome,
)
from tests.common.features.workflows.kit import Flow, once, proposals


def change(field: str, after: str, before: str = "") -> TermChange:
    return TermChange(field, before.encode(), after.encode())


async def applying(flow: Flow, count: int = 0, job_id: str = "") -> StepExecution:
    """A job with the step `apply` running."""
    job_id = job_id or await flow.create()
    await flow.run(job_id, "first")
    await flow.run(job_id, "second", proposals(count))
    await flow.execute(job_id, "review")
    return await flow.start(job_id, "apply")


async def store_document(flow: Flow, document_id: str, revision: str, tenant: str = "") -> None:
    """Store a document as a worker does."""
    keys = replace(flow.rag, tenant=tenant)
    record = {DocumentField.ID: document_id, DocumentField.REVISION: revision}
    await flow.client.hset(keys.documents, document_id, codec.dumps(record))
    for name in (keys.text(document_id), keys.chunks(document_id), keys.vectors(document_id)):
        await flow.client.set(name, b"x")
    version = await flow.client.incr(keys.version)
    await flow.client.zadd(keys.order, {document_id: version})
    await flow.client.sadd(keys.namespaces, keys.namespace)


async def terms(flow: Flow) -> dict[str, str]:
    stored = await flow.client.hgetall(flow.rag.ontology)
    return {name.decode(): value.decode() for name, value in stored.items()}


async def version(flow: Flow) -> int:
    return int(await flow.client.get(flow.rag.version) or 0)


def effects_of(flow: Flow) -> EffectStore:
    return EffectStore(flow.client, flow.store)


async def rag_keys(flow: Flow) -> list[bytes]:
    return sorted(await flow.client.keys(f"{flow.keys.tag}rag*"))


async def reverted(flow: Flow, running: StepExecution) -> list[str]:
    """Fail the execution, and revert its effects."""
    await flow.store.fail(running, b"[]")
    return await effects_of(flow).revert(running.job_id)


def refused(outcome: WorkflowOutcome) -> tuple[str, Any]:
    assert outcome.answer is WorkflowAnswer.REFUSED, outcome
    return outcome.facts["code"], outcome.facts.get("items")


async def test_terms_are_changed_and_their_old_values_kept(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    await flow.client.hset(flow.rag.ontology, "queue", "old")
    changes = [change("dlq", "new"), change("queue", "newer", "old")]
    assert (await effects.change_terms(running, flow.rag, changes)).answer is WorkflowAnswer.OK
    assert await terms(flow) == {"dlq": "new", "queue": "newer"}
    assert await effects.for_execution(running) == Effects(
        {"dlq": (b"", b"new"), "queue": (b"old", b"newer")}, namespace="notes"
    )
    versions = await flow.client.mget(flow.rag.ontology_version, flow.rag.version)
    assert len(set(versions)) == 1
    assert await flow.client.smembers(flow.rag.namespaces) == {b"notes"}
    assert await effects.jobs_with_effects() == [running.job_id]
    assert await flow.without_ttl() == []


async def test_a_repeated_call_changes_nothing(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    changes = [change("dlq", "new")]
    await effects.change_terms(running, flow.rag, changes)
    made, at = await effects.for_execution(running), await version(flow)
    assert (await effects.change_terms(running, flow.rag, changes)).answer is WorkflowAnswer.OK
    assert await version(flow) == at
    assert await effects.for_execution(running) == made


async def test_the_version_of_the_namespace_changes(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    await store_document(flow, "d1", "r1")
    before = await version(flow)
    await effects.record_documents(running, flow.rag, {"d2": "r2"})
    assert await version(flow) == before
    await effects.change_terms(running, flow.rag, [change("dlq", "new")])
    assert await version(flow) == before + 1
    await reverted(flow, running)
    assert await version(flow) == before + 2
    assert await flow.client.get(flow.rag.ontology_version) is None


async def test_a_conflicting_term_fails_the_whole_call(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    await flow.client.hset(flow.rag.ontology, "queue", "another's")
    before = await flow.snapshot()
    changes = [change("dlq", "new"), change("queue", "mine")]
    outcome = await effects.change_terms(running, flow.rag, changes)
    assert refused(outcome) == (WorkflowError.VERSION_CONFLICT.value, ["queue"])
    assert await flow.snapshot() == before


async def test_the_first_old_value_is_kept(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    await effects.change_terms(running, flow.rag, [change("dlq", "one")])
    await effects.change_terms(running, flow.rag, [change("dlq", "two", "one")])
    assert (await effects.for_execution(running)).terms == {"dlq": (b"", b"two")}
    await reverted(flow, running)
    assert await terms(flow) == {}


async def test_a_revert_restores_a_value_written_in_between(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    await flow.client.hset(flow.rag.ontology, "dlq", "at first")
    await effects.change_terms(running, flow.rag, [change("dlq", "mine", "at first")])
    await flow.client.hset(flow.rag.ontology, "dlq", "theirs")
    await effects.change_terms(running, flow.rag, [change("dlq", "mine again", "theirs")])
    await reverted(flow, running)
    assert await terms(flow) == {"dlq": "theirs"}


async def test_incomplete_effects_are_reverted(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    await flow.client.hset(flow.rag.ontology, mapping={"queue": "old", "gone": "there"})
    await store_document(flow, "theirs", "r0")
    await effects.record_documents(running, flow.rag, {"d1": "r1", "never": "r2"})
    await store_document(flow, "d1", "r1")
    changes = [change("dlq", "new"), change("queue", "newer", "old"), change("gone", "", "there")]
    await effects.change_terms(running, flow.rag, changes)
    assert await terms(flow) == {"dlq": "new", "queue": "newer"}
    assert await effects.revert(running.job_id) == []  # it is still running
    assert await effects.jobs_with_effects() == [running.job_id]
    assert await reverted(flow, running) == [undo_token_for(running.execution)]
    assert await terms(flow) == {"queue": "old", "gone": "there"}
    assert await flow.client.hkeys(flow.rag.documents) == [b"theirs"]
    assert await flow.client.zrange(flow.rag.order, 0, -1) == [b"theirs"]
    own = (flow.rag.text("d1"), flow.rag.chunks("d1"), flow.rag.vectors("d1"))
    assert not await flow.client.exists(*own)
    assert await effects.jobs_with_effects() == []
    assert await effects.revert(running.job_id) == []


async def test_a_document_stored_by_another_is_removed_from_the_record(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    await effects.record_documents(running, flow.rag, {"d1": "r1", "d2": "r2"})
    await effects.record_documents(running, flow.rag, {"d1": ""})
    assert (await effects.for_execution(running)).documents == {"d2": "r2"}


async def test_an_execution_may_revert_its_own_effects(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    await effects.change_terms(running, flow.rag, [change("dlq", "new")])
    assert await effects.revert(running.job_id, running)
    assert await terms(flow) == {}
    assert not await effects.for_execution(running)


async def test_a_cancelled_job_leaves_no_effects(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    await effects.change_terms(running, flow.rag, [change("dlq", "new")])
    await flow.store.cancel(running.job_id, once())
    for job_id in await effects.jobs_with_effects():
        await effects.revert(job_id)
    assert await rag_keys(flow) == []


async def test_an_empty_namespace_is_removed(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    keys = replace(flow.rag, tenant="acme")
    await effects.record_documents(running, keys, {"d1": "r1"})
    await store_document(flow, "d1", "r1", keys.tenant)
    await effects.change_terms(running, keys, [change("dlq", "new")])
    assert await flow.client.smembers(keys.namespaces) == {b"notes"}
    await reverted(flow, running)
    assert await rag_keys(flow) == []


async def test_later_changes_of_others_are_kept(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    await effects.record_documents(running, flow.rag, {"d1": "r1", "d2": "r2"})
    await store_document(flow, "d1", "r1")
    await store_document(flow, "d2", "other")
    await effects.change_terms(running, flow.rag, [change("dlq", "new"), change("queue", "new")])
    await flow.client.hset(flow.rag.ontology, "queue", "a person's")
    await reverted(flow, running)
    assert await terms(flow) == {"queue": "a person's"}
    assert await flow.client.hkeys(flow.rag.documents) == [b"d2"]


async def test_only_the_current_execution_may_apply(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    late = running._replace(execution="ex_00000000")
    before = await flow.snapshot()
    changes = [change("dlq", "new")]
    assert (await effects.change_terms(late, flow.rag, changes)).answer is WorkflowAnswer.LOST
    nowhere = running._replace(job_id="wf_20260214_999")
    assert (await effects.change_terms(nowhere, flow.rag, changes)).answer is WorkflowAnswer.MISSING
    assert await flow.snapshot() == before
    await flow.store.fail(running, b"[]")
    assert (await effects.change_terms(running, flow.rag, changes)).answer is WorkflowAnswer.ALREADY
    assert await rag_keys(flow) == []


async def test_a_completed_step_keeps_its_effects(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    await effects.change_terms(running, flow.rag, [change("dlq", "new")])
    token = undo_token_for(running.execution)
    done = await flow.complete(running, StepResult("applied", undo_token=token))
    assert done.facts["undo_token"] == token
    assert await effects.revert(running.job_id) == []
    assert await effects.jobs_with_effects() == []
    assert await terms(flow) == {"dlq": "new"}
    assert await flow.client.lrange(flow.keys.undo(running.job_id), 0, -1) == [token.encode()]


async def test_namespaces_and_terms_are_limited(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    too_many = [change(str(n), "x") for n in range(MOST_PER_CALL + 1)]
    with pytest.raises(ValueError, match="at most"):
        await effects.change_terms(running, flow.rag, too_many)
    await flow.client.hset(flow.rag.ontology, mapping={f"t{n}": "x" for n in range(MOST_TERMS)})
    outcome = await effects.change_terms(running, flow.rag, [change("dlq", "new")])
    assert refused(outcome)[0] == WorkflowError.NAMESPACE_FULL.value
    assert (await effects.change_terms(running, flow.rag, [change("t1", "y", "x")])).facts == {}
    names = [f"n{number}" for number in range(1000)]
    await flow.client.delete(flow.rag.ontology, flow.rag.namespaces)
    await flow.client.sadd(flow.rag.namespaces, *names)
    outcome = await effects.change_terms(running, flow.rag, [change("dlq", "new")])
    assert refused(outcome)[0] == WorkflowError.TOO_MANY_NAMESPACES.value


@pytest.mark.parametrize("name", ["ontology", "documents", "version", "namespaces"])
async def test_a_key_of_the_wrong_type_fails_before_any_write(flow: Flow, name: str) -> None:
    effects, running = effects_of(flow), await applying(flow)
    key = getattr(flow.rag, name)
    await flow.client.delete(key)
    await flow.client.rpush(key, "foreign")
    before = await flow.snapshot()
    with pytest.raises(CorruptKey):
        await effects.change_terms(running, flow.rag, [change("dlq", "new")])
    assert await flow.snapshot() == before


async def test_any_text_is_restored_exactly(flow: Flow) -> None:
    effects, running = effects_of(flow), await applying(flow)
    odd = 'a "quoted" \\ / é 東京 \u2028 \x01'
    await flow.client.hset(flow.rag.ontology, 'é/"', odd)
    await effects.change_terms(running, flow.rag, [change('é/"', odd + "!", odd)])
    await reverted(flow, running)
    assert await terms(flow) == {'é/"': odd}


def test_the_script_stays_within_the_limit_of_locals() -> None:
    """Lua allows 200 local variables in a chunk."""
    source = render_script()
    names = [line for line in source.splitlines() if line.startswith("local ")]
    assert len(names) < 190
