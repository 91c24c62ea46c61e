"""The apply step: changes are found, undo reverts them, and a crash leaves no partial state."""

from __future__ import annotations

import json
from typing import Any

from common.features.workflows.types import WorkflowAnswer
from tests.worker.features.rag.kit import WordEmbedder
from tests.worker.features.workflows.memory_first.apply_kit import (
    DLQ,
    GLOSSARY,
    SAYS_IT,
    SOURCES,
    TWO,
    ApplyMaker,
    ApplyRig,
    id_of,
)


async def content(rig: ApplyRig, pattern: str = "rag*") -> dict[bytes, Any]:
    """All keys of documents and terms, except versions."""
    found: dict[bytes, Any] = {}
    for key in sorted(await rig.client.keys(rig.keys.tag + pattern)):
        if not key.endswith((b":version", b":order", b"ontology.version", b":vset")):
            kind = await rig.client.type(key)
            read = {b"hash": rig.client.hgetall, b"set": rig.client.smembers}
            found[key] = await read.get(kind, rig.client.get)(key)
    return found


async def test_apply_changes_search_results_and_undo_reverts_them(rigs: ApplyMaker) -> None:
    rig = await rigs()
    job_id = await rig.reviewed(TWO, SOURCES)
    assert await rig.found("DLQ") == []
    about = await rig.applied(job_id)
    assert await rig.found("DLQ") == [id_of(GLOSSARY), id_of(SAYS_IT)]
    assert await rig.terms() == {"backlog": (), "dead letter queue": ("DLQ",)}
    assert set((await rig.proposals(job_id)).values()) == {"applied"}
    step = await rig.step(job_id, "apply")
    token = f"undo_{step.execution[3:]}"
    assert (step.undo_token, about["undo_token"]) == (token, token)
    assert step.summary == "Applied 2 proposals: 2 terms changed, 2 documents added"
    assert about == {
        "applied": 2, "failed": 0, "undo_token": token, "dry_run": False,
        "terms": 2, "terms_before": 0, "terms_after": 2,
        "documents": 2, "documents_known": 0, "document_ids": [id_of(SAYS_IT), id_of(GLOSSARY)],
        "moves": 0,
    }  # fmt: skip
    [_, entry] = await rig.entries()
    assert (entry.kind, entry.job, entry.proposal) == ("term_alias", job_id, "p_001")
    assert entry.added_ms == step.started_ms
    assert (await rig.snapshot(job_id)).draft_state.value == "clean"
    undone = await rig.undo(job_id, token)
    assert undone.facts["undone"] == ["p_001", "p_002"]
    assert await rig.found("DLQ") == []
    assert set((await rig.proposals(job_id)).values()) == {"approved"}
    assert await rig.client.keys(f"{rig.keys.tag}rag*") == []
    assert (await rig.undo(job_id, token)).answer is WorkflowAnswer.ALREADY
    assert (await rig.applied(job_id))["applied"] == 2
    assert await rig.found("DLQ") == [id_of(GLOSSARY), id_of(SAYS_IT)]


async def test_documents_get_vectors_and_lose_them(rigs: ApplyMaker) -> None:
    rig = await rigs(WordEmbedder())
    job_id = await rig.reviewed([], SOURCES)
    about = await rig.applied(job_id)
    records = await rig.library.records(rig.notes(), [id_of(SAYS_IT)])
    assert [record.embedder for record in records] == ["words-64"]
    assert id_of(SAYS_IT) in await rig.found("nobody says this")
    await rig.undo(job_id, about["undo_token"])
    assert await rig.found("nobody says this") == []


async def test_the_undo_job_removes_vectors(rigs: ApplyMaker) -> None:
    rig = await rigs(WordEmbedder())
    await rig.applied(await rig.reviewed([], [GLOSSARY]))
    job_id = await rig.reviewed([], [SAYS_IT])
    about = await rig.applied(job_id)
    await rig.undo_by_job(job_id, about["undo_token"])
    assert await rig.documents() == {id_of(GLOSSARY)}
    if await rig.client.exists(rig.notes().vector_set):  # no worker has cached the namespace
        assert await rig.client.execute_command("VCARD", rig.notes().vector_set) == 1


async def test_existing_terms_and_documents_are_kept(rigs: ApplyMaker) -> None:
    rig = await rigs()
    first = await rig.reviewed(TWO, SOURCES)
    await rig.applied(first)
    before = await content(rig)
    second = await rig.reviewed([DLQ], [SAYS_IT, "More of it."])
    about = await rig.applied(second)
    assert (about["documents"], about["documents_known"], about["terms"]) == (1, 1, 0)
    assert (await rig.proposals(second)) == {"p_001": "applied"}
    assert (await rig.undo(second, about["undo_token"])).answer is WorkflowAnswer.OK
    assert await content(rig) == before


async def test_terms_of_two_workflows_are_merged(rigs: ApplyMaker) -> None:
    rig = await rigs()
    first = await rig.applied(await rig.reviewed([DLQ], [SAYS_IT]))
    other = {"kind": "term_merge", "from": "dead-letter box", "to": "Dead Letter Queue"}
    job_id = await rig.reviewed([other], [GLOSSARY])
    second = await rig.applied(job_id)
    assert await rig.terms() == {"dead letter queue": ("DLQ", "dead-letter box")}
    [job] = {entry.job for entry in await rig.entries()}
    assert job == job_id
    refused = await rig.undo((await first_job(rig)), first["undo_token"])
    assert refused.answer is WorkflowAnswer.REFUSED
    assert (refused.facts["code"], refused.facts["items"]) == (
        "undo_conflict",
        ["dead letter queue"],
    )
    assert (await rig.undo(job_id, second["undo_token"])).answer is WorkflowAnswer.OK
    assert await rig.terms() == {"dead letter queue": ("DLQ",)}
    undone = await rig.undo((await first_job(rig)), first["undo_token"])
    assert undone.answer is WorkflowAnswer.OK
    assert await rig.client.keys(f"{rig.keys.tag}rag*") == []


async def first_job(rig: ApplyRig) -> str:
    names = await rig.client.zrange(rig.workflows.keys.index(), 0, 0)
    return str(names[0].decode())


async def test_a_replaced_document_is_reported(rigs: ApplyMaker) -> None:
    rig = await rigs()
    job_id = await rig.reviewed([DLQ], [SAYS_IT])
    about = await rig.applied(job_id)
    raw = await rig.client.hget(rig.notes().documents, id_of(SAYS_IT))
    record = {**json.loads(raw), "revision": "another"}
    await rig.client.hset(rig.notes().documents, id_of(SAYS_IT), json.dumps(record))
    before = await content(rig)
    refused = await rig.undo(job_id, about["undo_token"])
    assert refused.facts["items"] == [id_of(SAYS_IT)]
    assert await content(rig) == before
    assert (await rig.proposals(job_id)) == {"p_001": "applied"}


async def test_an_existing_document_id_fails_that_source(rigs: ApplyMaker) -> None:
    rig = await rigs()
    raw = json.dumps(
        {
            "id": id_of(SAYS_IT), "title": "", "media_type": "text/plain", "chars": 1, "chunks": 0,
            "sha256": "00", "revision": "theirs",
        }
    )  # fmt: skip
    await rig.client.hset(rig.notes().documents, id_of(SAYS_IT), raw)
    job_id = await rig.reviewed([], SOURCES)
    about = await rig.applied(job_id)
    assert (about["failed"], about["document_ids"]) == (1, [id_of(GLOSSARY)])
    [error] = (await rig.step(job_id, "apply")).errors
    assert (error["code"], error["source"]) == ("source_failed", "s_001")
    assert await rig.client.hget(rig.notes().documents, id_of(SAYS_IT)) == raw.encode()


async def test_a_dry_run_only_reports_the_changes(rigs: ApplyMaker) -> None:
    rig = await rigs()
    job_id = await rig.reviewed(TWO, SOURCES)
    about = await rig.applied(job_id, dry_run=True)
    assert (about["dry_run"], about["undo_token"]) == (True, None)
    assert (about["applied"], about["terms"], about["documents"]) == (2, 2, 2)
    assert await rig.client.keys(f"{rig.keys.tag}rag*") == []
    assert set((await rig.proposals(job_id)).values()) == {"approved"}
    assert (await rig.step(job_id, "apply")).summary.startswith("Would apply 2 proposals")
    assert (await rig.applied(job_id, dry_run=False))["terms"] == 2


async def test_only_approved_proposals_are_applied(fake_rigs: ApplyMaker) -> None:
    rig = await fake_rigs()
    job_id = await rig.reviewed(TWO, [SAYS_IT], approve=False)
    assert (await rig.applied(job_id))["applied"] == 0
    assert await rig.terms() == {}
    assert await rig.documents() == {id_of(SAYS_IT)}


async def test_an_empty_job(fake_rigs: ApplyMaker) -> None:
    rig = await fake_rigs()
    job_id = await rig.reviewed([], [])
    about = await rig.applied(job_id)
    assert about["undo_token"] is None
    assert (await rig.snapshot(job_id)).undo_depth == 0


async def test_invalid_proposals_are_reported_and_the_rest_applied(fake_rigs: ApplyMaker) -> None:
    rig = await fake_rigs()
    odd: list[dict[str, Any]] = [
        {"kind": "term_alias", "from": "DLQ", "to": "  "},
        {"kind": "term_alias", "from": None, "to": "x"},
        {"kind": "term_alias", "from": "y" * 300, "to": "x"},
        {"kind": "magic", "from": "a", "to": "b"},
        {"kind": "file_move", "from": "a.txt", "to": "b/a.txt"},
        {"kind": "term_case", "from": "redis", "to": "Redis"},
    ]
    job_id = await rig.reviewed(odd, [])
    about = await rig.applied(job_id)
    assert (about["applied"], about["failed"], about["moves"]) == (2, 4, 1)
    assert list((await rig.proposals(job_id)).values()) == ["failed"] * 4 + ["applied"] * 2
    assert [error["source"] for error in (await rig.step(job_id, "apply")).errors] == [
        *("p_001", "p_002", "p_003", "p_004")
    ]
    assert await rig.terms() == {"Redis": ()}
    moves = (await rig.payloads(job_id, "apply"))[1:]
    assert moves == [{"kind": "file_move", "proposal": "p_005", "from": "a.txt", "to": "b/a.txt"}]
    await rig.undo(job_id, about["undo_token"])
    assert set((await rig.proposals(job_id)).values()) == {"approved"}


async def test_a_tenants_terms_are_its_own(fake_rigs: ApplyMaker) -> None:
    rig = await fake_rigs()
    about = await rig.applied(await rig.reviewed([DLQ], [SAYS_IT], tenant="acme"))
    assert about["documents"] == 1
    assert await rig.terms() == {}
    assert await rig.terms("acme") == {"dead letter queue": ("DLQ",)}
    assert await rig.client.keys("rag:*") == []


async def test_many_proposals_at_once(rigs: ApplyMaker) -> None:
    rig = await rigs()
    many = [{"kind": "term_add", "from": None, "to": f"term {number}"} for number in range(450)]
    job_id = await rig.reviewed(many, [])
    about = await rig.applied(job_id)
    assert (about["terms"], await rig.client.hlen(rig.notes().ontology)) == (450, 450)
    assert (await rig.undo(job_id, about["undo_token"])).answer is WorkflowAnswer.OK
    assert await rig.client.keys(f"{rig.keys.tag}rag*") == []
