"""The apply step with odd proposals, crashes, concurrent changes and claims of several jobs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluice.common.contracts.rag import MOST_TERMS
from sluice.common.features.rag.ontology import TermEntry
from sluice.common.features.workflows.effects import EffectStore
from sluice.common.features.workflows.types import WorkflowAnswer
from sluice.worker.errors import TransientError
from sluice.worker.features.rag.ingest import Ingest
from tests.support.waiting import eventually
from tests.support.worker.memory_first import (
    DLQ,
    GLOSSARY,
    SAYS_IT,
    TEXTS,
    TWO,
    ApplyWorker,
    MakeApply,
    id_of,
)

pytestmark = pytest.mark.fakeredis_only

Around = Callable[..., None]


async def content(jobs: ApplyWorker) -> dict[bytes, Any]:
    """All keys of documents and terms, except versions."""
    found: dict[bytes, Any] = {}
    for key in sorted(await jobs.client.keys(f"{jobs.keys.tag}rag*")):
        if not key.endswith((b":version", b":order", b"ontology.version", b":vset")):
            kind = await jobs.client.type(key)
            read = {b"hash": jobs.client.hgetall, b"set": jobs.client.smembers}
            found[key] = await read.get(kind, jobs.client.get)(key)
    return found


async def test_only_approved_proposals_of_the_tenant_are_applied(jobs: ApplyWorker) -> None:
    _, about = await jobs.apply([DLQ], [SAYS_IT], tenant="acme")
    assert about["documents"] == 1
    assert await jobs.terms() == {}
    assert await jobs.terms("acme") == {"dead letter queue": ("DLQ",)}
    assert await jobs.client.keys("rag:*") == []
    _, about = await jobs.apply(TWO, [SAYS_IT], approve=False)
    assert about["applied"] == 0
    assert await jobs.terms() == {}
    assert await jobs.documents() == {id_of(SAYS_IT)}
    job_id, about = await jobs.apply([], [])
    assert about["undo_token"] is None
    assert (await jobs.snapshot(job_id)).undo_depth == 0


async def test_existing_terms_and_documents_are_kept(jobs: ApplyWorker) -> None:
    await jobs.apply(TWO, TEXTS)
    before = await content(jobs)
    second, about = await jobs.apply([DLQ], [SAYS_IT, "More of it."])
    assert (about["documents"], about["documents_known"], about["terms"]) == (1, 1, 0)
    assert (await jobs.proposals(second)) == {"p_001": "applied"}
    await jobs.undone(second, about)
    assert await content(jobs) == before


MERGE = {"kind": "term_merge", "from": "dead-letter box", "to": "Dead Letter Queue"}


async def test_terms_of_two_workflows_are_merged(jobs: ApplyWorker) -> None:
    first, second = await jobs.apply([DLQ], [SAYS_IT]), await jobs.apply([MERGE], [GLOSSARY])
    assert await jobs.terms() == {"dead letter queue": ("DLQ", "dead-letter box")}
    assert {entry.job for entry in await jobs.entries()} == {second[0]}
    refused = await jobs.undo(first[0], first[1]["undo_token"])
    assert refused.answer is WorkflowAnswer.REFUSED
    conflict = {"code": "undo_conflict", "items": ["dead letter queue"]}
    assert conflict.items() <= refused.facts.items()
    await jobs.undone(*second)
    assert await jobs.terms() == {"dead letter queue": ("DLQ",)}
    await jobs.undone(*first)
    assert await jobs.nothing_left()


async def test_an_existing_document_id_fails_that_source(jobs: ApplyWorker) -> None:
    raw = json.dumps(
        {
            "id": id_of(SAYS_IT), "title": "", "media_type": "text/plain", "chars": 1, "chunks": 0,
            "sha256": "00", "revision": "theirs",
        }
    )  # fmt: skip
    await jobs.client.hset(jobs.notes().documents, id_of(SAYS_IT), raw)
    job_id, about = await jobs.apply([], TEXTS)
    assert (about["failed"], about["document_ids"]) == (1, [id_of(GLOSSARY)])
    [error] = (await jobs.step(job_id, "apply")).errors
    assert (error["code"], error["source"]) == ("source_failed", "s_001")
    assert await jobs.client.hget(jobs.notes().documents, id_of(SAYS_IT)) == raw.encode()


async def test_a_dry_run_and_an_undo_that_is_refused(jobs: ApplyWorker) -> None:
    job_id = await jobs.reviewed(TWO, TEXTS)
    about = await jobs.applied(job_id, dry_run=True)
    assert (about["dry_run"], about["undo_token"]) == (True, None)
    assert (about["applied"], about["terms"], about["documents"]) == (2, 2, 2)
    assert await jobs.nothing_left()
    assert set((await jobs.proposals(job_id)).values()) == {"approved"}
    assert (await jobs.step(job_id, "apply")).summary.startswith("Would apply 2 proposals")
    about = await jobs.applied(job_id, dry_run=False)
    assert about["terms"] == 2
    # A document that was replaced meanwhile is reported by undo.
    raw = await jobs.client.hget(jobs.notes().documents, id_of(SAYS_IT))
    record = {**json.loads(raw), "revision": "another"}
    await jobs.client.hset(jobs.notes().documents, id_of(SAYS_IT), json.dumps(record))
    before = await content(jobs)
    refused = await jobs.undo(job_id, about["undo_token"])
    assert refused.facts["items"] == [id_of(SAYS_IT)]
    assert await content(jobs) == before
    assert set((await jobs.proposals(job_id)).values()) == {"applied"}


async def test_invalid_proposals_are_reported_and_the_rest_applied(jobs: ApplyWorker) -> None:
    odd: list[dict[str, Any]] = [
        {"kind": "term_alias", "from": "DLQ", "to": "  "},
        {"kind": "term_alias", "from": None, "to": "x"},
        {"kind": "term_alias", "from": "y" * 300, "to": "x"},
        {"kind": "magic", "from": "a", "to": "b"},
        {"kind": "file_move", "from": "a.txt", "to": "b/a.txt"},
        {"kind": "term_case", "from": "redis", "to": "Redis"},
    ]
    job_id, about = await jobs.apply(odd, [])
    assert (about["applied"], about["failed"], about["moves"]) == (2, 4, 1)
    assert list((await jobs.proposals(job_id)).values()) == ["failed"] * 4 + ["applied"] * 2
    named = [error["source"] for error in (await jobs.step(job_id, "apply")).errors]
    assert named == ["p_001", "p_002", "p_003", "p_004"]
    assert await jobs.terms() == {"Redis": ()}
    moves = (await jobs.payloads(job_id, "apply"))[1:]
    assert moves == [{"kind": "file_move", "proposal": "p_005", "from": "a.txt", "to": "b/a.txt"}]
    await jobs.undone(job_id, about)
    assert set((await jobs.proposals(job_id)).values()) == {"approved"}


async def test_many_proposals_at_once(jobs: ApplyWorker) -> None:
    many = [{"kind": "term_add", "from": None, "to": f"term {number}"} for number in range(450)]
    job_id, about = await jobs.apply(many, [])
    assert (about["terms"], await jobs.client.hlen(jobs.notes().ontology)) == (450, 450)
    await jobs.undone(job_id, about)
    assert await jobs.nothing_left()


# -- Crashes and concurrent changes ---------------------------------------------------------------


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Around:
    """Awaits a function before or after the n-th call of a method, or all of them."""

    def hook(
        owner: type,
        name: str,
        *,
        before: Callable[[], Awaitable[Any]] | None = None,
        after: Callable[[], Awaitable[Any]] | None = None,
        call: int | None = 1,
    ) -> None:
        real, calls = getattr(owner, name), itertools.count(1)

        async def called(self: Any, *args: Any) -> Any:
            hooked = next(calls) == call or call is None
            if hooked and before is not None:
                await before()
            done = await real(self, *args)
            if hooked and after is not None:
                await after()
            return done

        monkeypatch.setattr(owner, name, called)

    return hook


async def die() -> None:
    raise TransientError("as if the worker had died")


@pytest.mark.parametrize("stops", ["record_documents", "add_new", "change_terms", "for_execution"])
async def test_another_attempt_continues(jobs: ApplyWorker, around: Around, stops: str) -> None:
    """As after a crash: the changes are made, and only Redis knows of them."""
    owner = Ingest if stops == "add_new" else EffectStore
    around(owner, stops, after=die, call=2 if stops == "for_execution" else 1)
    job_id, about = await jobs.apply(TWO, TEXTS)
    assert (about["documents"], about["documents_known"], about["terms"]) == (2, 0, 2)
    assert await jobs.found("DLQ") == [id_of(GLOSSARY), id_of(SAYS_IT)]
    await jobs.undone(job_id, about)
    assert await jobs.nothing_left()


@pytest.mark.parametrize("full", ["documents", "terms"])
async def test_a_full_namespace_fails_the_step_and_leaves_nothing(
    make_apply: MakeApply, full: str
) -> None:
    jobs = await make_apply(most_documents=1 if full == "documents" else 100)
    terms = {f"t{number}": b"x" for number in range(MOST_TERMS)} if full == "terms" else {}
    if terms:
        await jobs.client.hset(jobs.notes().ontology, mapping=terms)
    job_id = await jobs.reviewed(TWO, TEXTS)
    failed = await jobs.run(job_id, "apply")
    assert failed.status.value == "failed"
    assert failed.errors[0]["code"] == "namespace_full"
    assert (await jobs.snapshot(job_id)).draft_state.value == "failed"
    assert await jobs.documents() == set()
    assert await jobs.client.hlen(jobs.notes().ontology) == len(terms)
    if not terms:
        assert "RAG_MAX_DOCUMENTS" in failed.errors[0]["message"]
        assert await jobs.nothing_left()


async def test_a_decision_meanwhile_fails_the_step_and_leaves_nothing(
    jobs: ApplyWorker, around: Around
) -> None:
    job_id = await jobs.reviewed(TWO, TEXTS)

    async def decide() -> None:
        states = jobs.workflows.keys.states(job_id)
        await jobs.client.hset(states, "p_001", "approved 9 0 0.900000")

    around(EffectStore, "change_terms", after=decide)
    failed = await jobs.run(job_id, "apply")
    assert failed.errors[0]["code"] == "version_conflict"
    await eventually(jobs.nothing_left)


async def test_a_cancelled_job_leaves_nothing(jobs: ApplyWorker, around: Around) -> None:
    job_id = await jobs.reviewed(TWO, TEXTS)

    async def cancel() -> None:
        assert await jobs.documents()
        await jobs.workflows.cancel(job_id, jobs.once())

    around(Ingest, "add_new", after=cancel)
    await jobs.execute(job_id, "apply")
    await jobs.core_ended(job_id, "apply")
    assert await jobs.nothing_left()


async def test_changes_of_a_crashed_worker_are_reverted(
    jobs: ApplyWorker, around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crashed worker cannot clean up; the next reconcile round does."""
    job_id = await jobs.reviewed(TWO, TEXTS)

    async def dead(*args: Any) -> list[str]:
        return []

    async def mistake() -> None:
        raise RuntimeError("a mistake of ours")

    around(EffectStore, "for_execution", before=mistake, call=3)
    with monkeypatch.context() as patch:
        patch.setattr("sluice.worker.features.workflows.job_failure.revert_effects", dead)
        patch.setattr(EffectStore, "revert", dead)
        assert (await jobs.run(job_id, "apply")).status.value == "failed"
        assert await jobs.terms() == {"backlog": (), "dead letter queue": ("DLQ",)}
    assert await jobs.service.reconciler.revert_effects() == 1
    assert await jobs.nothing_left()
    assert await jobs.service.reconciler.revert_effects() == 0


async def test_concurrent_changes_are_not_overwritten(jobs: ApplyWorker, around: Around) -> None:
    async def change() -> None:
        theirs = TermEntry("dead letter queue", ("morgue",)).to_json()
        await jobs.client.hset(jobs.notes().ontology, "dead letter queue", theirs)

    around(EffectStore, "terms", after=change)
    await jobs.apply([DLQ], [])
    assert await jobs.terms() == {"dead letter queue": ("morgue", "DLQ")}


async def test_another_job_stores_the_same_document_first(
    jobs: ApplyWorker, around: Around
) -> None:
    job_id, other = [await jobs.reviewed([], [SAYS_IT]) for _ in range(2)]
    around(Ingest, "add_new", before=lambda: jobs.applied(other))
    about = await jobs.applied(job_id)
    assert (about["documents"], about["documents_known"]) == (0, 1)
    await jobs.undone(job_id, about)
    assert await jobs.documents() == {id_of(SAYS_IT)}


async def test_an_intent_overtaken_by_another_job_is_dropped(
    jobs: ApplyWorker, around: Around
) -> None:
    """The overtaken attempt crashed before it could drop it; the document must not be reverted."""
    other = await jobs.reviewed([], [GLOSSARY])

    async def overtake_and_die() -> None:
        await jobs.applied(other)
        await die()

    around(Ingest, "add_new", before=overtake_and_die)
    job_id, about = await jobs.apply([DLQ], TEXTS)
    assert (about["documents"], about["documents_known"]) == (1, 1)
    await jobs.undone(job_id, about)
    assert await jobs.documents() == {id_of(GLOSSARY)}


TERM = {"dead letter queue": ("DLQ",)}


async def test_a_deleted_job_keeps_its_claims(jobs: ApplyWorker) -> None:
    first, (gone, _), third = [await jobs.apply([DLQ], [SAYS_IT]) for _ in range(3)]
    for key in await jobs.client.keys(f"{jobs.workflows.keys.job(gone)}*"):
        await jobs.client.delete(key)
    for job in (first, third):
        await jobs.undone(*job)
    assert await jobs.terms() == TERM
    assert await jobs.documents() == {id_of(SAYS_IT)}


async def test_documents_stored_by_users_are_kept(jobs: ApplyWorker) -> None:
    first, second = [await jobs.apply([DLQ], [SAYS_IT]) for _ in range(2)]
    # The document is deleted: no job claims it any more.
    await jobs.client.hdel(jobs.notes().documents, id_of(SAYS_IT))
    await jobs.undone(*first)
    assert await jobs.terms() == TERM
    await jobs.undone(*second)
    assert await jobs.terms() == {}


async def test_data_reverted_before_the_claim_is_stored_again(
    jobs: ApplyWorker, around: Around
) -> None:
    first = await jobs.apply([DLQ], [SAYS_IT, GLOSSARY])
    around(EffectStore, "claim_documents", before=lambda: jobs.undone(*first))
    job_id, about = await jobs.apply([DLQ], [SAYS_IT])
    assert (about["documents"], about["terms"]) == (1, 1)
    assert await jobs.documents() == {id_of(SAYS_IT)}
    await jobs.undone(job_id, about)
    assert await jobs.nothing_left()


async def test_another_job_stores_it_first_and_reverts_it(
    jobs: ApplyWorker, around: Around
) -> None:
    job_id, other = [await jobs.reviewed([], [SAYS_IT]) for _ in range(2)]
    applied: list[dict[str, Any]] = []

    async def overtake() -> None:
        applied.append(await jobs.applied(other))

    async def revert() -> None:
        if applied:
            await jobs.undone(other, applied.pop())

    around(Ingest, "add_new", before=overtake)
    around(EffectStore, "claim_documents", before=revert, call=None)
    assert (await jobs.applied(job_id))["documents"] == 1
    assert await jobs.documents() == {id_of(SAYS_IT)}
