"""Limits of namespaces, and validation of payloads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.features.rag.kit import RagMaker
from worker.features.rag.store import MOST_NAMESPACES


async def test_the_number_of_documents_is_limited(rag: RagMaker) -> None:
    worker = await rag(most_documents=2)
    for name in "ab":
        await worker.add("Text.", name)
    full = await worker.do({"op": "ingest", "document": {"id": "c", "text": "Text."}})
    assert full.kind == "namespace_full"
    assert "RAG_MAX_DOCUMENTS" in full.value["message"]
    assert not await worker.client.exists(worker.ns.text("c"))
    # an existing document may be replaced
    assert (await worker.add("Other text.", "a"))["replaced"]
    await worker.do({"op": "delete", "document_id": "b"})
    await worker.add("Text.", "c")


async def test_the_number_of_namespaces_is_limited(rag: RagMaker) -> None:
    worker = await rag()
    names = [f"n{number}" for number in range(MOST_NAMESPACES)]
    await worker.client.sadd(worker.ns.namespaces, *names)  # type: ignore[misc]
    refused = await worker.do({"op": "ingest", "ns": "one-more", "document": {"text": "x"}})
    assert refused.kind == "too_many_namespaces"
    await worker.add("Text.", "a", ns="n1")
    await worker.add("Text.", "a", ns="one-more", tenant="other")


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({}, "query: Field required"),
        ({"query": ""}, "at least 1 character"),
        ({"query": "x" * 4001}, "at most 4000"),
        ({"query": "x", "colour": "red"}, "colour: Extra inputs"),
        ({"query": "x", "top_k": 0}, "top_k"),
        ({"query": "x", "top_k": 51}, "top_k"),
        ({"query": "x", "top_k": "5"}, "top_k"),
        ({"query": "x", "mode": "fused"}, "mode"),
        ({"query": "x", "ns": "No"}, "ns"),
        ({"query": "x", "ns": "a:b"}, "ns"),
        ({"op": "explode"}, "op"),
        ({"op": "ingest"}, "either"),
        ({"op": "ingest", "document": {"text": "x"}, "upload": True}, "either"),
        ({"op": "ingest", "document": {"text": "x", "id": "a b"}}, "id"),
        ({"op": "ingest", "document": {"text": "x", "id": "../x"}}, "id"),
        ({"op": "ingest", "document": {"text": "x", "title": "x" * 201}}, "title"),
        ({"op": "ingest", "upload": "abc"}, "upload"),
        ({"op": "delete"}, "document_id"),
        ({"op": "delete", "document_id": ""}, "document_id"),
        ({"op": ["query"], "query": "x"}, "op"),
    ],
)
async def test_payloads_that_are_refused(
    fake_rag: RagMaker, payload: dict[str, Any], words: str
) -> None:
    worker = await fake_rag()
    refused = await worker.do(payload)
    assert refused.kind == "invalid_payload"
    assert words in refused.value["message"]


async def test_an_empty_id_means_no_id(fake_rag: RagMaker) -> None:
    worker = await fake_rag()
    ended = await worker.do({"op": "ingest", "document": {"id": "", "text": "Text."}})
    assert len(ended.result["document_id"]) == 32


async def test_a_document_that_does_not_fit_leaves_no_upload(rag: RagMaker) -> None:
    worker = await rag(most_documents=1)
    await worker.add("Text.", "a")
    payload = {"op": "ingest", "document": {"id": "b", "media_type": "text/plain"}, "upload": True}
    job_id = await worker.submit(payload, upload=b"Other text.")
    assert (await worker.end(job_id)).kind == "namespace_full"
    assert await worker.client.keys(worker.ns.upload("*")) == []
