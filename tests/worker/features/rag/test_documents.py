"""Documents of a namespace: ingested, replaced, deleted and found, within limits."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from common.features.rag.documents import RagReader
from tests.support.worker.rag import RagMaker, WordEmbedder
from worker.features.rag.store import MOST_NAMESPACES

GATES = "# Gates\n\nA sluice is a gate that controls a stream.\n\n## Keys\n\nJobs have keys."
TEA = "Green tea is brewed at eighty degrees. Black tea takes boiling water."


async def test_a_document_is_ingested_and_found(rag: RagMaker) -> None:
    worker = await rag()
    result = await worker.add(GATES, "gates", media_type="text/markdown")
    assert isinstance(result.pop("ms"), int)
    assert result == {
        "document_id": "gates", "title": "Gates", "chunks": 1, "chars": len(GATES),
        "embedder": "", "replaced": False,
    }  # fmt: skip
    await worker.add(TEA, "tea")
    answer = await worker.ask("which gate controls streams?")
    assert answer["mode"] == "lexical"
    assert answer["citations"] == []
    assert "text" not in answer
    [hit] = answer["hits"]
    assert (hit["document_id"], hit["title"]) == ("gates", "Gates")
    assert hit["score"] > 0
    await worker.check_spans(answer["hits"])
    assert await worker.found("brewing temperature of tea") == ["tea"]
    assert await worker.found("nothing of the kind") == []


@pytest.mark.fakeredis_only
async def test_without_an_id_the_digest_is_the_id(rag: RagMaker) -> None:
    worker = await rag()
    ended = await worker.do({"op": "ingest", "document": {"id": "", "text": TEA}})
    first, again = ended.result, await worker.add(TEA)
    digest = hashlib.sha256(TEA.encode()).hexdigest()
    assert first["document_id"] == again["document_id"] == digest[:32]
    assert (first["replaced"], again["replaced"]) == (False, True)
    assert await worker.client.hlen(worker.ns.documents) == 1


@pytest.mark.fakeredis_only
async def test_a_document_is_replaced(rag: RagMaker) -> None:
    worker = await rag()
    await worker.add(TEA, "drink")
    reader = RagReader(worker.client, worker.keys.tag)
    before = await reader.get(worker.ns, "drink")
    assert await worker.found("tea") == ["drink"]
    replaced = await worker.add("Coffee is roasted.", "drink")
    assert replaced["replaced"]
    after = await reader.get(worker.ns, "drink")
    assert before is not None
    assert after is not None
    assert before.revision != after.revision
    assert after.sha256 == hashlib.sha256(b"Coffee is roasted.").hexdigest()
    assert await worker.found("tea") == []
    assert await worker.found("coffee") == ["drink"]


async def test_deleting_the_last_document_deletes_the_namespace(rag: RagMaker) -> None:
    worker = await rag(WordEmbedder())
    await worker.add(TEA, "tea")
    await worker.add(GATES, "gates")
    assert await worker.found("tea", mode="lexical") == ["tea"]
    gone = (await worker.do({"op": "delete", "document_id": "tea"})).result
    assert gone["deleted"] is True
    assert await worker.found("tea", mode="lexical") == []
    assert (await worker.do({"op": "delete", "document_id": "tea"})).result["deleted"] is False
    assert await worker.client.smembers(worker.ns.namespaces) == {b"default"}
    assert (await worker.do({"op": "delete", "document_id": "gates"})).result["deleted"]
    assert await worker.client.keys(f"{worker.keys.tag}rag*") == []
    assert await worker.found("gate") == []
    # The namespace can be used again.
    await worker.add("Gates again.", "gates")
    assert await worker.found("gate", mode="lexical") == ["gates"]


@pytest.mark.fakeredis_only
async def test_a_recreated_namespace_has_no_old_documents(rag: RagMaker) -> None:
    """A worker that noticed neither must drop its deleted documents."""
    one, two = await rag(consumer="one"), await rag(consumer="two")
    await one.add("Old words.", "a")
    await one.add("More old words.", "b")
    hits = await two.library.search("", "default", "old", 5)
    assert sorted(hit.document_id for hit in hits) == ["a", "b"]
    for name in "ab":
        await one.do({"op": "delete", "document_id": name})
    await one.add("New words.", "c")
    hits = await two.library.search("", "default", "old new words", 5)
    assert [hit.document_id for hit in hits] == ["c"]


@pytest.mark.fakeredis_only
async def test_workers_see_each_others_changes(rag: RagMaker) -> None:
    one, two = await rag(consumer="one"), await rag(consumer="two")

    async def seen(query: str) -> list[list[str]]:
        found = [await each.library.search("", "default", query, 5) for each in (one, two)]
        return [[hit.document_id for hit in hits] for hits in found]

    await one.add(TEA, "tea")
    assert await seen("tea") == [["tea"], ["tea"]]
    await two.add(GATES, "gates")
    assert await seen("gates") == [["gates"], ["gates"]]
    await one.add("Gates are closed.", "tea")
    assert [sorted(names) for names in await seen("gates")] == 2 * [["gates", "tea"]]
    await two.do({"op": "delete", "document_id": "gates"})
    assert await seen("gates") == [["tea"], ["tea"]]


@pytest.mark.fakeredis_only
async def test_uploads_are_read_and_gone(rag: RagMaker) -> None:
    worker = await rag()
    body = "<title>Löwen</title><p>Der Löwe schläft.".encode()
    payload = {"op": "ingest", "upload": True, "document": {"id": "l", "media_type": "text/html"}}
    reported = {**payload, "upload": hashlib.sha256(body).hexdigest()}
    job_id = await worker.submit(reported, upload=body)
    result = (await worker.end(job_id)).result
    assert (result["title"], result["chars"]) == ("Löwen", len("Der Löwe schläft."))
    assert not await worker.client.exists(worker.ns.upload(job_id))
    assert (await worker.do(payload)).kind == "upload_gone"
    titled = {**payload, "document": {"id": "l", "title": " Two\n lines\t"}}
    ended = await worker.end(await worker.submit(titled, upload=body))
    assert ended.result["title"] == "Two lines"
    assert (await worker.end(await worker.submit(reported, upload=b"other"))).kind == "upload_gone"


@pytest.mark.fakeredis_only
async def test_the_gateway_can_read_the_stored_documents(rag: RagMaker) -> None:
    worker = await rag()
    names = [f"d{number}" for number in range(7)]
    for name in names:
        await worker.add(f"Text of {name}: öäü.", name)
    await worker.add("Text of d2, again.", "d2")
    reader = RagReader(worker.client, worker.keys.tag)
    listed, cursor = [], ""
    while True:
        page = await reader.list(worker.ns, cursor, 3)
        assert page.total == 7
        listed += [record.id for record in page.records]
        if page.next is None:
            break
        cursor = page.next
    assert listed == ["d2", "d6", "d5", "d4", "d3", "d1", "d0"]
    record = await reader.get(worker.ns, "d1")
    assert record is not None
    assert (record.chars, record.chunks, record.media_type) == (16, 1, "text/plain")
    assert record.added_ts > 1_700_000_000_000
    assert await reader.text(worker.ns, "d1", 12, 15) == "öäü"
    assert await reader.text(worker.ns, "nobody") is None
    assert await reader.get(worker.ns, "nobody") is None
    other = worker.named("default", "other")
    assert (await reader.list(other)).records == []
    assert await reader.namespaces("other") == []


async def test_the_number_of_documents_is_limited(rag: RagMaker) -> None:
    worker = await rag(most_documents=2)
    for name in "ab":
        await worker.add("Text.", name)
    payload = {"op": "ingest", "document": {"id": "c", "media_type": "text/plain"}, "upload": True}
    full = await worker.end(await worker.submit(payload, upload=b"Text."))
    assert full.kind == "namespace_full"
    assert "RAG_MAX_DOCUMENTS" in full.value["message"]
    assert not await worker.client.exists(worker.ns.text("c"))
    assert await worker.client.keys(worker.ns.upload("*")) == []
    # an existing document may be replaced
    assert (await worker.add("Other text.", "a"))["replaced"]
    await worker.do({"op": "delete", "document_id": "b"})
    await worker.add("Text.", "c")


@pytest.mark.fakeredis_only
async def test_the_number_of_namespaces_is_limited(rag: RagMaker) -> None:
    worker = await rag()
    names = [f"n{number}" for number in range(MOST_NAMESPACES)]
    await worker.client.sadd(worker.ns.namespaces, *names)  # type: ignore[misc]
    refused = await worker.do({"op": "ingest", "ns": "one-more", "document": {"text": "x"}})
    assert refused.kind == "too_many_namespaces"
    await worker.add("Text.", "a", ns="n1")
    await worker.add("Text.", "a", ns="one-more", tenant="other")


@pytest.mark.fakeredis_only
async def test_payloads_that_are_refused(rag: RagMaker) -> None:
    worker = await rag()
    cases: list[tuple[dict[str, Any], str]] = [
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
    ]
    for payload, words in cases:
        refused = await worker.do(payload)
        assert refused.kind == "invalid_payload", payload
        assert words in refused.value["message"], payload


@pytest.mark.fakeredis_only
async def test_tenants_and_namespaces_do_not_see_each_other(rag: RagMaker) -> None:
    worker = await rag()
    await worker.add("The red secret.", "note", tenant="red")
    await worker.add("The blue secret.", "note", tenant="blue")
    await worker.add("No tenant's secret.", "note")
    for tenant, words in (("red", "The red"), ("blue", "The blue"), ("", "No tenant's")):
        [hit] = (await worker.ask("secret", tenant))["hits"]
        assert hit["quote"] == f"{words} secret."
    assert await worker.client.smembers(worker.named("default", "red").namespaces) == {b"default"}
    await worker.do({"op": "delete", "document_id": "note"}, "red")
    assert await worker.found("secret", "red") == []
    assert await worker.found("secret", "blue") == ["note"]
    await worker.add("Here.", "a", ns="one")
    await worker.add("Here.", "b", ns="two")
    assert await worker.found("here", ns="one") == ["a"]
    assert await worker.found("here", ns="two") == ["b"]
    assert await worker.found("here") == []
    reader = RagReader(worker.client, worker.keys.tag)
    assert await reader.namespaces() == ["default", "one", "two"]
