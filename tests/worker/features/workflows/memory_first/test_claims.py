"""Data applied by one workflow and found by another stays until both are undone."""

from __future__ import annotations

from typing import Any

import pytest

from common.features.workflows.effects import EffectStore
from common.features.workflows.types import WorkflowAnswer
from tests.worker.features.rag.kit import WordEmbedder
from tests.worker.features.workflows.memory_first.apply_kit import (
    DLQ,
    GLOSSARY,
    SAYS_IT,
    ApplyMaker,
    ApplyRig,
    id_of,
)
from worker.features.rag.ingest import Ingest

TERM = {"dead letter queue": ("DLQ",)}


async def both(rig: ApplyRig) -> list[tuple[str, str]]:
    """Two jobs that apply the same, each with its undo token."""
    made = []
    for _ in range(2):
        job_id = await rig.reviewed([DLQ], [SAYS_IT])
        made.append((job_id, (await rig.applied(job_id))["undo_token"]))
    return made


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_data_stays_until_the_last_job_is_undone(
    rigs: ApplyMaker, order: tuple[int, int]
) -> None:
    rig = await rigs()
    jobs = await both(rig)
    assert (await rig.undo(*jobs[order[0]])).answer is WorkflowAnswer.OK
    assert await rig.terms() == TERM
    assert await rig.found("DLQ") == [id_of(SAYS_IT)]
    assert (await rig.undo(*jobs[order[1]])).answer is WorkflowAnswer.OK
    assert await rig.client.keys(f"{rig.keys.tag}rag*") == []


async def test_a_job_that_only_claims_can_be_undone(rigs: ApplyMaker) -> None:
    rig = await rigs()
    first, second = [await rig.reviewed([], [SAYS_IT]) for _ in range(2)]
    made = await rig.applied(first)
    known = await rig.applied(second)
    assert (known["documents"], known["documents_known"]) == (0, 1)
    assert await rig.service.reconciler.revert_effects() == 0
    await rig.undo(first, made["undo_token"])
    assert await rig.documents() == {id_of(SAYS_IT)}
    await rig.undo(second, known["undo_token"])
    assert await rig.client.keys(f"{rig.keys.tag}rag*") == []


async def test_a_deleted_job_keeps_its_claims(rigs: ApplyMaker) -> None:
    rig = await rigs()
    [first, (gone, _), third] = [*await both(rig), (await both(rig))[0]]
    for key in await rig.client.keys(f"{rig.workflows.keys.job(gone)}*"):
        await rig.client.delete(key)
    for job in (first, third):
        assert (await rig.undo(*job)).answer is WorkflowAnswer.OK
    assert await rig.terms() == TERM
    assert await rig.documents() == {id_of(SAYS_IT)}


async def test_documents_stored_by_users_are_kept(rigs: ApplyMaker) -> None:
    rig = await rigs()
    first, second = await both(rig)
    # The document is deleted: no job claims it any more.
    await rig.client.hdel(rig.notes().documents, id_of(SAYS_IT))
    await rig.undo(*first)
    assert await rig.terms() == TERM
    await rig.undo(*second)
    assert await rig.terms() == {}


async def test_data_reverted_before_the_claim_is_stored_again(
    rigs: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await rigs()
    job_id = await rig.reviewed([DLQ], [SAYS_IT, GLOSSARY])
    about = await rig.applied(job_id)
    other = await rig.reviewed([DLQ], [SAYS_IT])
    real, calls = EffectStore.claim_documents, []

    async def late(self: EffectStore, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            await rig.undo(job_id, about["undo_token"])
        return await real(self, *args)

    monkeypatch.setattr(EffectStore, "claim_documents", late)
    again = await rig.applied(other)
    assert (again["documents"], again["terms"]) == (1, 1)
    assert await rig.documents() == {id_of(SAYS_IT)}
    await rig.undo(other, again["undo_token"])
    assert await rig.client.keys(f"{rig.keys.tag}rag*") == []


async def test_another_job_stores_it_first_and_reverts_it(
    rigs: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await rigs()
    job_id, other = [await rig.reviewed([], [SAYS_IT]) for _ in range(2)]
    real_add, real_claim = Ingest.add_new, EffectStore.claim_documents
    about: dict[str, Any] = {}

    async def overtaken(self: Ingest, *args: Any) -> Any:
        if not about:
            about["undo_token"] = ""
            about.update(await rig.applied(other))
        return await real_add(self, *args)

    async def late(self: EffectStore, *args: Any) -> Any:
        if token := about.pop("undo_token", None):
            await rig.undo(other, token)
        return await real_claim(self, *args)

    monkeypatch.setattr(Ingest, "add_new", overtaken)
    monkeypatch.setattr(EffectStore, "claim_documents", late)
    assert (await rig.applied(job_id))["documents"] == 1
    assert await rig.documents() == {id_of(SAYS_IT)}


async def test_a_document_that_stays_keeps_its_vectors(rigs: ApplyMaker) -> None:
    rig = await rigs(WordEmbedder())
    (job_id, token), _ = await both(rig)
    assert await rig.found("nobody says this") == [id_of(SAYS_IT)]
    await rig.undo_by_job(job_id, token)
    assert await rig.found("nobody says this") == [id_of(SAYS_IT)]
    if await rig.client.exists(rig.notes().vector_set):
        assert await rig.client.execute_command("VCARD", rig.notes().vector_set) == 1
