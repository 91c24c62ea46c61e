"""The apply step with crashes, concurrent changes, exhausted limits, and claims of several jobs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from common.contracts.rag import MOST_TERMS
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


def around(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    *,
    before: Callable[[int], Any] | None = None,
    after: Callable[[int], Any] | None = None,
) -> None:
    """Await a function before or after each call of a method, with the number of the call."""
    real, calls = getattr(owner, name), itertools.count(1)

    async def called(self: Any, *args: Any) -> Any:
        number = next(calls)
        if before is not None:
            await before(number)
        done = await real(self, *args)
        if after is not None:
            await after(number)
        return done

    monkeypatch.setattr(owner, name, called)


def dies_in(call: int) -> Callable[[int], Any]:
    """Fail in this call, as if the worker had died."""

    async def die(number: int) -> None:
        if number == call:
            raise TransientError("as if it had died")

    return die


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("stops", ["record_documents", "add_new", "change_terms", "for_execution"])
async def test_another_attempt_continues(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch, stops: str
) -> None:
    """As after a crash: the changes are made, and only Redis knows of them."""
    worker = await make_apply()
    job_id = await worker.reviewed(TWO, SOURCES)
    owner = Ingest if stops == "add_new" else EffectStore
    around(monkeypatch, owner, stops, after=dies_in(2 if stops == "for_execution" else 1))
    about = await worker.applied(job_id)
    assert (about["documents"], about["documents_known"], about["terms"]) == (2, 0, 2)
    assert await worker.found("DLQ") == [id_of(GLOSSARY), id_of(SAYS_IT)]
    assert (await worker.undo(job_id, about["undo_token"])).answer is WorkflowAnswer.OK
    assert await worker.nothing_left()


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
        assert await worker.nothing_left()


@pytest.mark.fakeredis_only
async def test_a_decision_meanwhile_fails_the_step_and_leaves_nothing(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await make_apply()
    job_id = await worker.reviewed(TWO, SOURCES)

    async def decide(number: int) -> None:
        states = worker.workflows.keys.states(job_id)
        await worker.client.hset(states, "p_001", "approved 9 0 0.900000")

    around(monkeypatch, EffectStore, "change_terms", after=decide)
    failed = await worker.run(job_id, "apply")
    assert failed.errors[0]["code"] == "version_conflict"
    await eventually(worker.nothing_left)


@pytest.mark.fakeredis_only
async def test_a_cancelled_job_leaves_nothing(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await make_apply()
    job_id = await worker.reviewed(TWO, SOURCES)

    async def cancel(number: int) -> None:
        if await worker.documents():
            await worker.workflows.cancel(job_id, worker.once())

    around(monkeypatch, Ingest, "add_new", after=cancel)
    await worker.execute(job_id, "apply")
    await worker.core_ended(job_id, "apply")
    assert await worker.nothing_left()


@pytest.mark.fakeredis_only
async def test_changes_of_a_crashed_worker_are_reverted(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crashed worker cannot clean up; the next reconcile round does."""
    worker = await make_apply()
    job_id = await worker.reviewed(TWO, SOURCES)

    async def dead(self: EffectStore, *args: Any) -> list[str]:
        return []

    async def mistake(number: int) -> None:
        if number == 3:
            raise RuntimeError("a mistake of ours")

    with monkeypatch.context() as patch:
        patch.setattr("worker.features.workflows.job_failure.revert_effects", lambda *_: dead(*_))
        patch.setattr(EffectStore, "revert", dead)
        around(patch, EffectStore, "for_execution", before=mistake)
        assert (await worker.run(job_id, "apply")).status.value == "failed"
        assert await worker.terms() == {"backlog": (), "dead letter queue": ("DLQ",)}
    assert await worker.service.reconciler.revert_effects() == 1
    assert await worker.nothing_left()
    assert await worker.service.reconciler.revert_effects() == 0


@pytest.mark.fakeredis_only
async def test_concurrent_changes_are_not_overwritten(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await make_apply()
    job_id = await worker.reviewed([DLQ], [])

    async def change(number: int) -> None:
        if number == 1:
            theirs = TermEntry("dead letter queue", ("morgue",)).to_json()
            await worker.client.hset(worker.notes().ontology, "dead letter queue", theirs)

    around(monkeypatch, EffectStore, "terms", after=change)
    await worker.applied(job_id)
    assert await worker.terms() == {"dead letter queue": ("morgue", "DLQ")}


@pytest.mark.fakeredis_only
async def test_another_job_stores_the_same_document_first(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await make_apply()
    job_id = await worker.reviewed([], [SAYS_IT])
    other = await worker.reviewed([], [SAYS_IT])

    async def overtake(number: int) -> None:
        if number == 1:
            await worker.applied(other)

    around(monkeypatch, Ingest, "add_new", before=overtake)
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

    async def overtake_and_die(number: int) -> None:
        if number == 1:
            await worker.applied(other)
            raise TransientError("as if it had died")

    around(monkeypatch, Ingest, "add_new", before=overtake_and_die)
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
        assert await worker.nothing_left()
    # Also if the second job has only claimed a document.
    first_job, second_job = [await worker.reviewed([], [SAYS_IT]) for _ in range(2)]
    made = await worker.applied(first_job)
    known = await worker.applied(second_job)
    assert (known["documents"], known["documents_known"]) == (0, 1)
    assert await worker.service.reconciler.revert_effects() == 0
    await worker.undo(first_job, made["undo_token"])
    assert await worker.documents() == {id_of(SAYS_IT)}
    await worker.undo(second_job, known["undo_token"])
    assert await worker.nothing_left()


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

    async def undo(number: int) -> None:
        if number == 1:
            await worker.undo(job_id, about["undo_token"])

    around(monkeypatch, EffectStore, "claim_documents", before=undo)
    again = await worker.applied(other)
    assert (again["documents"], again["terms"]) == (1, 1)
    assert await worker.documents() == {id_of(SAYS_IT)}
    await worker.undo(other, again["undo_token"])
    assert await worker.nothing_left()


@pytest.mark.fakeredis_only
async def test_another_job_stores_it_first_and_reverts_it(
    make_apply: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await make_apply()
    job_id, other = [await worker.reviewed([], [SAYS_IT]) for _ in range(2)]
    tokens: list[str] = []

    async def overtake(number: int) -> None:
        if number == 1:
            tokens.append((await worker.applied(other))["undo_token"])

    async def revert(number: int) -> None:
        if tokens:
            await worker.undo(other, tokens.pop())

    around(monkeypatch, Ingest, "add_new", before=overtake)
    around(monkeypatch, EffectStore, "claim_documents", before=revert)
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
