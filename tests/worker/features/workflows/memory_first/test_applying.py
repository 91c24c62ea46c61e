"""The apply step: changes are found, undo reverts them, and a crash leaves no partial state."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.features.workflows.types import WorkflowAnswer
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


async def content(worker: ApplyWorker, pattern: str = "rag*") -> dict[bytes, Any]:
    """All keys of documents and terms, except versions."""
    found: dict[bytes, Any] = {}
    for key in sorted(await worker.client.keys(worker.keys.tag + pattern)):
        if not key.endswith((b":version", b":order", b"ontology.version", b":vset")):
            kind = await worker.client.type(key)
            read = {b"hash": worker.client.hgetall, b"set": worker.client.smembers}
            found[key] = await read.get(kind, worker.client.get)(key)
    return found


async def test_apply_changes_search_results_and_undo_reverts_them(make_apply: ApplyMaker) -> None:
    worker = await make_apply()
    job_id = await worker.reviewed(TWO, SOURCES)
    assert await worker.found("DLQ") == []
    about = await worker.applied(job_id)
    assert await worker.found("DLQ") == [id_of(GLOSSARY), id_of(SAYS_IT)]
    assert await worker.terms() == {"backlog": (), "dead letter queue": ("DLQ",)}
    assert set((await worker.proposals(job_id)).values()) == {"applied"}
    step = await worker.step(job_id, "apply")
    token = f"undo_{step.execution[3:]}"
    assert (step.undo_token, about["undo_token"]) == (token, token)
    assert step.summary == "Applied 2 proposals: 2 terms changed, 2 documents added"
    assert about == {
        "applied": 2, "failed": 0, "undo_token": token, "dry_run": False,
        "terms": 2, "terms_before": 0, "terms_after": 2,
        "documents": 2, "documents_known": 0, "document_ids": [id_of(SAYS_IT), id_of(GLOSSARY)],
        "moves": 0,
    }  # fmt: skip
    [_, entry] = await worker.entries()
    assert (entry.kind, entry.job, entry.proposal) == ("term_alias", job_id, "p_001")
    assert entry.added_ms == step.started_ms
    assert (await worker.snapshot(job_id)).draft_state.value == "clean"
    undone = await worker.undo(job_id, token)
    assert undone.facts["undone"] == ["p_001", "p_002"]
    assert await worker.found("DLQ") == []
    assert set((await worker.proposals(job_id)).values()) == {"approved"}
    assert await worker.nothing_left()
    assert (await worker.undo(job_id, token)).answer is WorkflowAnswer.ALREADY
    assert (await worker.applied(job_id))["applied"] == 2
    assert await worker.found("DLQ") == [id_of(GLOSSARY), id_of(SAYS_IT)]


async def test_documents_get_vectors_and_lose_them(make_apply: ApplyMaker) -> None:
    worker = await make_apply(WordEmbedder())
    await worker.applied(await worker.reviewed([], [GLOSSARY]))
    job_id = await worker.reviewed([], [SAYS_IT])
    about = await worker.applied(job_id)
    records = await worker.library.records(worker.notes(), [id_of(SAYS_IT)])
    assert [record.embedder for record in records] == ["words-64"]
    assert id_of(SAYS_IT) in await worker.found("no text says this")
    await worker.undo_by_job(job_id, about["undo_token"])
    if await worker.client.exists(worker.notes().vector_set):
        assert await worker.client.execute_command("VCARD", worker.notes().vector_set) == 1
    assert await worker.found("no text says this") == [id_of(GLOSSARY)]
    assert await worker.documents() == {id_of(GLOSSARY)}


@pytest.mark.fakeredis_only
async def test_only_approved_proposals_of_the_tenant_are_applied(make_apply: ApplyMaker) -> None:
    worker = await make_apply()
    about = await worker.applied(await worker.reviewed([DLQ], [SAYS_IT], tenant="acme"))
    assert about["documents"] == 1
    assert await worker.terms() == {}
    assert await worker.terms("acme") == {"dead letter queue": ("DLQ",)}
    assert await worker.client.keys("rag:*") == []
    job_id = await worker.reviewed(TWO, [SAYS_IT], approve=False)
    assert (await worker.applied(job_id))["applied"] == 0
    assert await worker.terms() == {}
    assert await worker.documents() == {id_of(SAYS_IT)}
    job_id = await worker.reviewed([], [])
    assert (await worker.applied(job_id))["undo_token"] is None
    assert (await worker.snapshot(job_id)).undo_depth == 0


@pytest.mark.fakeredis_only
async def test_existing_terms_and_documents_are_kept(make_apply: ApplyMaker) -> None:
    worker = await make_apply()
    first = await worker.reviewed(TWO, SOURCES)
    await worker.applied(first)
    before = await content(worker)
    second = await worker.reviewed([DLQ], [SAYS_IT, "More of it."])
    about = await worker.applied(second)
    assert (about["documents"], about["documents_known"], about["terms"]) == (1, 1, 0)
    assert (await worker.proposals(second)) == {"p_001": "applied"}
    assert (await worker.undo(second, about["undo_token"])).answer is WorkflowAnswer.OK
    assert await content(worker) == before


@pytest.mark.fakeredis_only
async def test_terms_of_two_workflows_are_merged(make_apply: ApplyMaker) -> None:
    worker = await make_apply()
    first_id = await worker.reviewed([DLQ], [SAYS_IT])
    first = await worker.applied(first_id)
    other = {"kind": "term_merge", "from": "dead-letter box", "to": "Dead Letter Queue"}
    job_id = await worker.reviewed([other], [GLOSSARY])
    second = await worker.applied(job_id)
    assert await worker.terms() == {"dead letter queue": ("DLQ", "dead-letter box")}
    [job] = {entry.job for entry in await worker.entries()}
    assert job == job_id
    refused = await worker.undo(first_id, first["undo_token"])
    assert refused.answer is WorkflowAnswer.REFUSED
    assert (refused.facts["code"], refused.facts["items"]) == (
        "undo_conflict",
        ["dead letter queue"],
    )
    assert (await worker.undo(job_id, second["undo_token"])).answer is WorkflowAnswer.OK
    assert await worker.terms() == {"dead letter queue": ("DLQ",)}
    undone = await worker.undo(first_id, first["undo_token"])
    assert undone.answer is WorkflowAnswer.OK
    assert await worker.nothing_left()


@pytest.mark.fakeredis_only
async def test_an_existing_document_id_fails_that_source(make_apply: ApplyMaker) -> None:
    worker = await make_apply()
    raw = json.dumps(
        {
            "id": id_of(SAYS_IT), "title": "", "media_type": "text/plain", "chars": 1, "chunks": 0,
            "sha256": "00", "revision": "theirs",
        }
    )  # fmt: skip
    await worker.client.hset(worker.notes().documents, id_of(SAYS_IT), raw)
    job_id = await worker.reviewed([], SOURCES)
    about = await worker.applied(job_id)
    assert (about["failed"], about["document_ids"]) == (1, [id_of(GLOSSARY)])
    [error] = (await worker.step(job_id, "apply")).errors
    assert (error["code"], error["source"]) == ("source_failed", "s_001")
    assert await worker.client.hget(worker.notes().documents, id_of(SAYS_IT)) == raw.encode()


@pytest.mark.fakeredis_only
async def test_a_dry_run_and_an_undo_that_is_refused(make_apply: ApplyMaker) -> None:
    worker = await make_apply()
    job_id = await worker.reviewed(TWO, SOURCES)
    about = await worker.applied(job_id, dry_run=True)
    assert (about["dry_run"], about["undo_token"]) == (True, None)
    assert (about["applied"], about["terms"], about["documents"]) == (2, 2, 2)
    assert await worker.nothing_left()
    assert set((await worker.proposals(job_id)).values()) == {"approved"}
    assert (await worker.step(job_id, "apply")).summary.startswith("Would apply 2 proposals")
    about = await worker.applied(job_id, dry_run=False)
    assert about["terms"] == 2
    # A document that was replaced meanwhile is reported by undo.
    raw = await worker.client.hget(worker.notes().documents, id_of(SAYS_IT))
    record = {**json.loads(raw), "revision": "another"}
    await worker.client.hset(worker.notes().documents, id_of(SAYS_IT), json.dumps(record))
    before = await content(worker)
    refused = await worker.undo(job_id, about["undo_token"])
    assert refused.facts["items"] == [id_of(SAYS_IT)]
    assert await content(worker) == before
    assert set((await worker.proposals(job_id)).values()) == {"applied"}


@pytest.mark.fakeredis_only
async def test_invalid_proposals_are_reported_and_the_rest_applied(make_apply: ApplyMaker) -> None:
    worker = await make_apply()
    odd: list[dict[str, Any]] = [
        {"kind": "term_alias", "from": "DLQ", "to": "  "},
        {"kind": "term_alias", "from": None, "to": "x"},
        {"kind": "term_alias", "from": "y" * 300, "to": "x"},
        {"kind": "magic", "from": "a", "to": "b"},
        {"kind": "file_move", "from": "a.txt", "to": "b/a.txt"},
        {"kind": "term_case", "from": "redis", "to": "Redis"},
    ]
    job_id = await worker.reviewed(odd, [])
    about = await worker.applied(job_id)
    assert (about["applied"], about["failed"], about["moves"]) == (2, 4, 1)
    assert list((await worker.proposals(job_id)).values()) == ["failed"] * 4 + ["applied"] * 2
    assert [error["source"] for error in (await worker.step(job_id, "apply")).errors] == [
        *("p_001", "p_002", "p_003", "p_004")
    ]
    assert await worker.terms() == {"Redis": ()}
    moves = (await worker.payloads(job_id, "apply"))[1:]
    assert moves == [{"kind": "file_move", "proposal": "p_005", "from": "a.txt", "to": "b/a.txt"}]
    await worker.undo(job_id, about["undo_token"])
    assert set((await worker.proposals(job_id)).values()) == {"approved"}


@pytest.mark.fakeredis_only
async def test_many_proposals_at_once(make_apply: ApplyMaker) -> None:
    worker = await make_apply()
    many = [{"kind": "term_add", "from": None, "to": f"term {number}"} for number in range(450)]
    job_id = await worker.reviewed(many, [])
    about = await worker.applied(job_id)
    assert (about["terms"], await worker.client.hlen(worker.notes().ontology)) == (450, 450)
    assert (await worker.undo(job_id, about["undo_token"])).answer is WorkflowAnswer.OK
    assert await worker.nothing_left()
