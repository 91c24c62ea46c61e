"""The apply step on every server: changes are found, and undo reverts them."""

from __future__ import annotations

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
from tests.support.worker.rag import WordEmbedder


async def test_apply_changes_search_results_and_undo_reverts_them(jobs: ApplyWorker) -> None:
    job_id = await jobs.reviewed(TWO, TEXTS)
    assert await jobs.found("DLQ") == []
    about = await jobs.applied(job_id)
    assert await jobs.found("DLQ") == [id_of(GLOSSARY), id_of(SAYS_IT)]
    assert await jobs.terms() == {"backlog": (), "dead letter queue": ("DLQ",)}
    assert set((await jobs.proposals(job_id)).values()) == {"applied"}
    step = await jobs.step(job_id, "apply")
    token = f"undo_{step.execution[3:]}"
    assert (step.undo_token, about["undo_token"]) == (token, token)
    assert step.summary == "Applied 2 proposals: 2 terms changed, 2 documents added"
    assert about == {
        "applied": 2, "failed": 0, "undo_token": token, "dry_run": False,
        "terms": 2, "terms_before": 0, "terms_after": 2,
        "documents": 2, "documents_known": 0, "document_ids": [id_of(SAYS_IT), id_of(GLOSSARY)],
        "moves": 0,
    }  # fmt: skip
    [_, entry] = await jobs.entries()
    assert (entry.kind, entry.job, entry.proposal) == ("term_alias", job_id, "p_001")
    assert entry.added_ms == step.started_ms
    assert (await jobs.snapshot(job_id)).draft_state.value == "clean"
    undone = await jobs.undo(job_id, token)
    assert undone.facts["undone"] == ["p_001", "p_002"]
    assert await jobs.found("DLQ") == []
    assert set((await jobs.proposals(job_id)).values()) == {"approved"}
    assert await jobs.nothing_left()
    assert (await jobs.undo(job_id, token)).answer.value == "already"
    assert (await jobs.applied(job_id))["applied"] == 2
    assert await jobs.found("DLQ") == [id_of(GLOSSARY), id_of(SAYS_IT)]


async def vectors(jobs: ApplyWorker) -> int:
    """Number of stored vectors; 1 on a server without vector sets."""
    if not await jobs.client.exists(jobs.notes().vector_set):
        return 1
    return int(await jobs.client.execute_command("VCARD", jobs.notes().vector_set))


async def test_documents_get_vectors_and_lose_them(make_apply: MakeApply) -> None:
    jobs = await make_apply(WordEmbedder())
    creator, made = await jobs.apply([], [GLOSSARY])
    job_id, about = await jobs.apply([], [SAYS_IT])
    records = await jobs.library.records(jobs.notes(), [id_of(SAYS_IT)])
    assert [record.embedder for record in records] == ["words-64"]
    assert id_of(SAYS_IT) in await jobs.found("no text says this")
    await jobs.undo_by_job(job_id, about["undo_token"])
    assert await vectors(jobs) == 1
    assert await jobs.found("no text says this") == [id_of(GLOSSARY)]
    assert await jobs.documents() == {id_of(GLOSSARY)}
    # A document that another job claims keeps its vectors.
    await jobs.apply([], [GLOSSARY])
    await jobs.undo_by_job(creator, made["undo_token"])
    assert await vectors(jobs) == 1
    assert await jobs.found("no text says this") == [id_of(GLOSSARY)]


async def test_data_stays_until_the_last_job_is_undone(jobs: ApplyWorker) -> None:
    for first, last in ((0, 1), (1, 0)):
        made = [await jobs.apply([DLQ], [SAYS_IT]) for _ in range(2)]
        await jobs.undone(*made[first])
        assert await jobs.terms() == {"dead letter queue": ("DLQ",)}
        assert await jobs.found("DLQ") == [id_of(SAYS_IT)]
        await jobs.undone(*made[last])
        assert await jobs.nothing_left()
