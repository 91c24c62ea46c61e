"""The apply step with crashes, concurrent changes, exhausted limits, and claims of several jobs."""

from __future__ import annotations

from typing import Any

import pytest

from common.contracts.rag import MOST_TERMS, RagKeys
from common.features.rag.ontology import TermEntry
from common.features.workflows.effects import EffectStore
from common.features.workflows.types import WorkflowAnswer
from tests.support.waiting import eventually
from tests.support.worker.memory_first_apply import (
    DLQ,
    GLOSSARY,
    SAYS_IT,
    SOURCES,
    TWO,
    ApplyMaker,
    ApplyWorker,
    id_of,
)
from tests.support.worker.rag import WordEmbedder
from worker.errors import TransientError
from worker.features.rag.ingest import Ingest


async def nothing_left(worker: ApplyWorker) -> bool:
    return await worker.client.keys(f"{worker.keys.tag}rag*") == []


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("stops", ["record_documents", "store", "change_terms", "for_execution"])
async def test_another_attempt_continues(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch, stops: str
) -> None:
    """As after a crash: the changes are made, and only Redis knows of them."""
    worker = await make_apply()
    job_id = await worker.reviewed(TWO, SOURCES)
    owner: Any = Ingest if stops == "store" else EffectStore
    name = "add_new" if stops == "store" else stops
    real, calls = getattr(owner, name), []

    async def stopped(self: Any, *args: Any) -> Any:
        done = await real(self, *args)
        calls.append(name)
        if len(calls) == 2 if stops == "for_execution" else len(calls) == 1:
            raise TransientError("as if it had died")
        return done

    monkeypatch.setattr(owner, name, stopped)
    about = await worker.applied(job_id)
    assert (about["documents"], about["documents_known"], about["terms"]) == (2, 0, 2)
    assert await worker.found("DLQ") == [id_of(GLOSSARY), id_of(SAYS_IT)]
    assert (await worker.undo(job_id, about["undo_token"])).answer is WorkflowAnswer.OK
    assert await nothing_left(worker)


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("full", ["documents", "terms"])
async def test_a_full_namespace_fails_the_step_and_leaves_nothing(
    make_apply: ApplyMaker, full: str
) -> None:
    worker = await make_apply(most_documents=1 if full == "documents" else 100)
    terms = {f"t{number}": b"x" for number in range(MOST_TERMS)} if full == "terms" else {}
    if terms:
        await worker.client.hset(worker.notes().ontology, mapping=terms)
    job_id = await worker.reviewed(TWO, SOURCES)
    failed = await worker.run(job_id, "apply")
    assert failed.status.value == "failed"
    assert failed.errors[0]["code"] == "namespace_full"
    assert (await worker.snapshot(job_id)).draft_state.value == "failed"
    assert await worker.documents() == set()
    assert await worker.client.hlen(worker.notes().ontology) == len(terms)
    if not terms:
        assert "RAG_MAX_DOCUMENTS" in failed.errors[0]["message"]
        assert await nothing_left(worker)


@pytest.mark.fakeredis_only
async def test_a_decision_meanwhile_fails_the_step_and_leaves_nothing(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await make_apply()
    job_id = await worker.reviewed(TWO, SOURCES)
    real, states = EffectStore.change_terms, worker.workflows.keys.states(job_id)

    async def late(self: EffectStore, *args: Any) -> Any:
        done = await real(self, *args)
        await worker.client.hset(states, "p_001", "approved 9 0 0.900000")
        return done

    monkeypatch.setattr(EffectStore, "change_terms", late)
    failed = await worker.run(job_id, "apply")
    assert failed.errors[0]["code"] == "version_conflict"
    await eventually(lambda: nothing_left(worker))


@pytest.mark.fakeredis_only
async def test_a_cancelled_job_leaves_nothing(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await make_apply()
    job_id = await worker.reviewed(TWO, SOURCES)
    real = Ingest.add_new

    async def cancelled(self: Ingest, *args: Any) -> Any:
        done = await real(self, *args)
        if await worker.documents():
            await worker.workflows.cancel(job_id, worker.once())
        return done

    monkeypatch.setattr(Ingest, "add_new", cancelled)
    await worker.execute(job_id, "apply")
    await worker.core_ended(job_id, "apply")
    assert await nothing_left(worker)


@pytest.mark.fakeredis_only
async def test_changes_of_a_crashed_worker_are_reverted(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crashed worker cannot clean up; the next reconcile round does."""
    worker = await make_apply()
    job_id = await worker.reviewed(TWO, SOURCES)

    async def dead(self: EffectStore, *args: Any) -> list[str]:
        return []

    with monkeypatch.context() as patch:
        patch.setattr("worker.features.workflows.job_failure.revert_effects", lambda *_: dead(*_))
        patch.setattr(EffectStore, "revert", dead)
        patch.setattr(EffectStore, "for_execution", failing_at(3))
        assert (await worker.run(job_id, "apply")).status.value == "failed"
        assert await worker.terms() == {"backlog": (), "dead letter queue": ("DLQ",)}
    assert await worker.service.reconciler.revert_effects() == 1
    assert await nothing_left(worker)
    assert await worker.service.reconciler.revert_effects() == 0


def failing_at(call: int) -> Any:
    real, calls = EffectStore.for_execution, []

    async def made(self: EffectStore, running: Any) -> Any:
        calls.append(running)
        if len(calls) == call:
            raise RuntimeError("a mistake of ours")
        return await real(self, running)

    return made


@pytest.mark.fakeredis_only
async def test_concurrent_changes_are_not_overwritten(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await make_apply()
    job_id = await worker.reviewed([DLQ], [])
    real, calls = EffectStore.terms, []

    async def overtaken(self: EffectStore, keys: RagKeys) -> Any:
        found = await real(self, keys)
        calls.append(keys)
        if len(calls) == 1:
            theirs = TermEntry("dead letter queue", ("morgue",)).to_json()
            await worker.client.hset(keys.ontology, "dead letter queue", theirs)
        return found

    monkeypatch.setattr(EffectStore, "terms", overtaken)
    await worker.applied(job_id)
    assert await worker.terms() == {"dead letter queue": ("morgue", "DLQ")}


@pytest.mark.fakeredis_only
async def test_another_job_stores_the_same_document_first(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await make_apply()
    job_id = await worker.reviewed([], [SAYS_IT])
    other = await worker.reviewed([], [SAYS_IT])
    real, calls = Ingest.add_new, []

    async def overtaken(self: Ingest, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            await worker.applied(other)
        return await real(self, *args)

    monkeypatch.setattr(Ingest, "add_new", overtaken)
    about = await worker.applied(job_id)
    assert (about["documents"], about["documents_known"]) == (0, 1)
    if about["undo_token"]:
        await worker.undo(job_id, about["undo_token"])
    assert await worker.documents() == {id_of(SAYS_IT)}


@pytest.mark.fakeredis_only
async def test_an_intent_overtaken_by_another_job_is_dropped(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The overtaken attempt crashed before it could drop it; the document must not be reverted."""
    worker = await make_apply()
    other = await worker.reviewed([], [GLOSSARY])
    job_id = await worker.reviewed([DLQ], SOURCES)
    real, calls = Ingest.add_new, []

    async def dies(self: Ingest, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            await worker.applied(other)
            raise TransientError("as if it had died")
        return await real(self, *args)

    monkeypatch.setattr(Ingest, "add_new", dies)
    about = await worker.applied(job_id)
    assert (about["documents"], about["documents_known"]) == (1, 1)
    assert (await worker.undo(job_id, about["undo_token"])).answer is WorkflowAnswer.OK
    assert await worker.documents() == {id_of(GLOSSARY)}


TERM = {"dead letter queue": ("DLQ",)}


async def both(worker: ApplyWorker, count: int = 2) -> list[tuple[str, str]]:
    """Jobs that apply the same, each with its undo token."""
    made = []
    for _ in range(count):
        job_id = await worker.reviewed([DLQ], [SAYS_IT])
        made.append((job_id, (await worker.applied(job_id))["undo_token"]))
    return made


async def test_data_stays_until_the_last_job_is_undone(make_apply: ApplyMaker) -> None:
    worker = await make_apply()
    for first, last in ((0, 1), (1, 0)):
        jobs = await both(worker)
        assert (await worker.undo(*jobs[first])).answer is WorkflowAnswer.OK
        assert await worker.terms() == TERM
        assert await worker.found("DLQ") == [id_of(SAYS_IT)]
        assert (await worker.undo(*jobs[last])).answer is WorkflowAnswer.OK
        assert await nothing_left(worker)
    # Also if the second job has only claimed a document.
    first_job, second_job = [await worker.reviewed([], [SAYS_IT]) for _ in range(2)]
    made = await worker.applied(first_job)
    known = await worker.applied(second_job)
    assert (known["documents"], known["documents_known"]) == (0, 1)
    assert await worker.service.reconciler.revert_effects() == 0
    await worker.undo(first_job, made["undo_token"])
    assert await worker.documents() == {id_of(SAYS_IT)}
    await worker.undo(second_job, known["undo_token"])
    assert await nothing_left(worker)


@pytest.mark.fakeredis_only
async def test_a_deleted_job_keeps_its_claims(make_apply: ApplyMaker) -> None:
    worker = await make_apply()
    first, (gone, _), third = await both(worker, 3)
    for key in await worker.client.keys(f"{worker.workflows.keys.job(gone)}*"):
        await worker.client.delete(key)
    for job in (first, third):
        assert (await worker.undo(*job)).answer is WorkflowAnswer.OK
    assert await worker.terms() == TERM
    assert await worker.documents() == {id_of(SAYS_IT)}


@pytest.mark.fakeredis_only
async def test_documents_stored_by_users_are_kept(make_apply: ApplyMaker) -> None:
    worker = await make_apply()
    first, second = await both(worker)
    # The document is deleted: no job claims it any more.
    await worker.client.hdel(worker.notes().documents, id_of(SAYS_IT))
    await worker.undo(*first)
    assert await worker.terms() == TERM
    await worker.undo(*second)
    assert await worker.terms() == {}


@pytest.mark.fakeredis_only
async def test_data_reverted_before_the_claim_is_stored_again(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await make_apply()
    job_id = await worker.reviewed([DLQ], [SAYS_IT, GLOSSARY])
    about = await worker.applied(job_id)
    other = await worker.reviewed([DLQ], [SAYS_IT])
    real, calls = EffectStore.claim_documents, []

    async def late(self: EffectStore, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            await worker.undo(job_id, about["undo_token"])
        return await real(self, *args)

    monkeypatch.setattr(EffectStore, "claim_documents", late)
    again = await worker.applied(other)
    assert (again["documents"], again["terms"]) == (1, 1)
    assert await worker.documents() == {id_of(SAYS_IT)}
    await worker.undo(other, again["undo_token"])
    assert await nothing_left(worker)


@pytest.mark.fakeredis_only
async def test_another_job_stores_it_first_and_reverts_it(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await make_apply()
    job_id, other = [await worker.reviewed([], [SAYS_IT]) for _ in range(2)]
    real_add, real_claim = Ingest.add_new, EffectStore.claim_documents
    about: dict[str, Any] = {}

    async def overtaken(self: Ingest, *args: Any) -> Any:
        if not about:
            about["undo_token"] = ""
            about.update(await worker.applied(other))
        return await real_add(self, *args)

    async def late(self: EffectStore, *args: Any) -> Any:
        if token := about.pop("undo_token", None):
            await worker.undo(other, token)
        return await real_claim(self, *args)

    monkeypatch.setattr(Ingest, "add_new", overtaken)
    monkeypatch.setattr(EffectStore, "claim_documents", late)
    assert (await worker.applied(job_id))["documents"] == 1
    assert await worker.documents() == {id_of(SAYS_IT)}


async def test_a_document_that_stays_keeps_its_vectors(make_apply: ApplyMaker) -> None:
    worker = await make_apply(WordEmbedder())
    (job_id, token), _ = await both(worker)
    assert await worker.found("nobody says this") == [id_of(SAYS_IT)]
    await worker.undo_by_job(job_id, token)
    assert await worker.found("nobody says this") == [id_of(SAYS_IT)]
    if await worker.client.exists(worker.notes().vector_set):
        assert await worker.client.execute_command("VCARD", worker.notes().vector_set) == 1
