"""Documents of a namespace: ingested, replaced, deleted and found, within limits."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from sluice.common.contracts.rag import SearchMode
from sluice.common.features.rag.documents import RagReader
from sluice.worker.features.rag.store import MOST_NAMESPACES
from tests.support.worker.rag import RagMaker, RagWorker, WordEmbedder

GATES = "# Gates\n\nA sluice is a gate that controls a stream.\n\n## Keys\n\nJobs have keys."
TEA = "Green tea is brewed at eighty degrees. Black tea takes boiling water."


async def test_a_document_is_ingested_and_found(lexical: RagWorker) -> None:
    result = await lexical.add(GATES, "gates", media_type="text/markdown")
    assert isinstance(result.pop("ms"), int)
    assert result == {
        "document_id": "gates", "title": "Gates", "chunks": 1, "chars": len(GATES),
        "embedder": "", "replaced": False,
    }  # fmt: skip
    await lexical.add(TEA, "tea")
    answer = await lexical.ask("which gate controls streams?")
    assert (answer["mode"], answer["citations"]) == ("lexical", [])
    assert "text" not in answer
    [hit] = answer["hits"]
    assert (hit["document_id"], hit["title"]) == ("gates", "Gates")
    assert hit["score"] > 0
    await lexical.check_spans(answer["hits"])
    assert await lexical.found("brewing temperature of tea") == ["tea"]
    assert await lexical.found("nothing of the kind") == []


@pytest.mark.fakeredis_only
async def test_without_an_id_the_digest_is_the_id(lexical: RagWorker) -> None:
    ended = await lexical.do({"op": "ingest", "document": {"id": "", "text": TEA}})
    first, again = ended.result, await lexical.add(TEA)
    digest = hashlib.sha256(TEA.encode()).hexdigest()
    assert first["document_id"] == again["document_id"] == digest[:32]
    assert (first["replaced"], again["replaced"]) == (False, True)
    assert await lexical.client.hlen(lexical.ns.documents) == 1


@pytest.mark.fakeredis_only
async def test_a_document_is_replaced(lexical: RagWorker) -> None:
    await lexical.add(TEA, "drink")
    before = await lexical.record("drink")
    assert await lexical.found("tea") == ["drink"]
    assert (await lexical.add("Coffee is roasted.", "drink"))["replaced"]
    after = await lexical.record("drink")
    assert before.revision != after.revision
    assert after.sha256 == hashlib.sha256(b"Coffee is roasted.").hexdigest()
    assert await lexical.found("tea") == []
    assert await lexical.found("coffee") == ["drink"]


async def test_deleting_the_last_document_deletes_the_namespace(rag: RagMaker) -> None:
    worker = await rag(WordEmbedder())
    await worker.add(TEA, "tea")
    await worker.add(GATES, "gates")
    assert await worker.found("tea", mode="lexical") == ["tea"]
    assert await worker.delete("tea")
    assert await worker.found("tea", mode="lexical") == []
    assert not await worker.delete("tea")
    assert await worker.client.smembers(worker.ns.namespaces) == {b"default"}
    assert await worker.delete("gates")
    assert await worker.client.keys(f"{worker.keys.tag}rag*") == []
    assert await worker.found("gate") == []
    # The namespace can be used again.
    await worker.add("Gates again.", "gates")
    assert await worker.found("gate", mode="lexical") == ["gates"]


@pytest.mark.fakeredis_only
async def test_a_recreated_namespace_has_no_old_documents(rag: RagMaker) -> None:
    """A worker that noticed neither must drop its deleted documents."""
    one, two = await rag(consumer="one"), await rag(consumer="two")
    for name in "ab":
        await one.add("Old words.", name)
    assert sorted(await two.search("old")) == ["a", "b"]
    for name in "ab":
        await one.delete(name)
    await one.add("New words.", "c")
    assert await two.search("old new words") == ["c"]


@pytest.mark.parametrize(
    "mode", [pytest.param(SearchMode.LEXICAL, marks=pytest.mark.fakeredis_only), SearchMode.VECTOR]
)
async def test_workers_see_each_others_changes(rag: RagMaker, mode: SearchMode) -> None:
    """They share documents, and the vectors that one of them makes."""
    one, two = await rag(WordEmbedder(), consumer="one"), await rag(WordEmbedder(), consumer="two")

    async def best(query: str) -> list[list[str]]:
        return [(await each.search(query, mode))[:1] for each in (one, two)]

    await one.add(TEA, "tea")
    assert await best("tea") == [["tea"]] * 2
    await two.add(GATES, "gates")
    assert await best("controls a stream") == [["gates"]] * 2
    await one.add("Gates are closed.", "tea")
    assert await best("closed gates") == [["tea"]] * 2
    await two.delete("gates")
    assert await one.search("gates", mode) == await two.search("gates", mode) == ["tea"]


@pytest.mark.fakeredis_only
async def test_uploads_are_read_and_gone(lexical: RagWorker) -> None:
    body = "<title>Löwen</title><p>Der Löwe schläft.".encode()
    payload = {"op": "ingest", "upload": True, "document": {"id": "l", "media_type": "text/html"}}
    reported = {**payload, "upload": hashlib.sha256(body).hexdigest()}
    result = (await lexical.do(reported, upload=body)).result
    assert (result["title"], result["chars"]) == ("Löwen", len("Der Löwe schläft."))
    assert await lexical.client.keys(lexical.ns.upload("*")) == []
    titled = {**payload, "document": {"id": "l", "title": " Two\n lines\t"}}
    assert (await lexical.do(titled, upload=body)).result["title"] == "Two lines"
    assert (await lexical.do(payload)).kind == "upload_gone"
    assert (await lexical.do(reported, upload=b"other")).kind == "upload_gone"


@pytest.mark.fakeredis_only
async def test_the_gateway_can_read_the_stored_documents(lexical: RagWorker) -> None:
    for number in range(7):
        await lexical.add(f"Text of d{number}: öäü.", f"d{number}")
    await lexical.add("Text of d2, again.", "d2")
    reader = RagReader(lexical.client, lexical.keys.tag)
    listed: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await reader.list(lexical.ns, cursor, 3)
        assert page.total == 7
        listed += [record.id for record in page.records]
        cursor = page.next
    assert listed == ["d2", "d6", "d5", "d4", "d3", "d1", "d0"]
    record = await lexical.record("d1")
    assert (record.chars, record.chunks, record.media_type) == (16, 1, "text/plain")
    assert record.added_ts > 1_700_000_000_000
    assert await reader.text(lexical.ns, "d1", 12, 15) == "öäü"
    assert await reader.text(lexical.ns, "nobody") is None
    assert await reader.get(lexical.ns, "nobody") is None
    assert (await reader.list(lexical.named("default", "other"))).records == []
    assert await reader.namespaces("other") == []


async def test_the_number_of_documents_is_limited(rag: RagMaker) -> None:
    worker = await rag(most_documents=2)
    for name in "ab":
        await worker.add("Text.", name)
    payload = {"op": "ingest", "document": {"id": "c", "media_type": "text/plain"}, "upload": True}
    full = await worker.do(payload, upload=b"Text.")
    assert full.kind == "namespace_full"
    assert "RAG_MAX_DOCUMENTS" in full.value["message"]
    assert not await worker.client.exists(worker.ns.text("c"))
    assert await worker.client.keys(worker.ns.upload("*")) == []
    assert (await worker.add("Other text.", "a"))["replaced"]
    await worker.delete("b")
    await worker.add("Text.", "c")


@pytest.mark.fakeredis_only
async def test_the_number_of_namespaces_is_limited(lexical: RagWorker) -> None:
    names = [f"n{number}" for number in range(MOST_NAMESPACES)]
    await lexical.client.sadd(lexical.ns.namespaces, *names)  # type: ignore[misc]
    refused = await lexical.do({"op": "ingest", "ns": "one-more", "document": {"text": "x"}})
    assert refused.kind == "too_many_namespaces"
    await lexical.add("Text.", "a", ns="n1")
    await lexical.add("Text.", "a", ns="one-more", tenant="other")


@pytest.mark.fakeredis_only
async def test_payloads_that_are_refused(lexical: RagWorker) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "query: Field required"),
        ({"query": ""}, "at least 1 character"),
        ({"query": "x" * 4001}, "at most 4000"),
        ({"query": "x", "colour": "red"}, "colour: Extra inputs"),
        *(({"query": "x", "top_k": top_k}, "top_k") for top_k in (0, 51, "5")),
        ({"query": "x", "mode": "fused"}, "mode"),
        *(({"query": "x", "ns": ns}, "ns") for ns in ("No", "a:b")),
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
        refused = await lexical.do(payload)
        assert refused.kind == "invalid_payload", payload
        assert words in refused.value["message"], payload


@pytest.mark.fakeredis_only
async def test_tenants_and_namespaces_do_not_see_each_other(lexical: RagWorker) -> None:
    secrets = {"red": "The red secret.", "blue": "The blue secret.", "": "No tenant's secret."}
    for tenant, text in secrets.items():
        await lexical.add(text, "note", tenant=tenant)
    for tenant, text in secrets.items():
        [hit] = (await lexical.ask("secret", tenant))["hits"]
        assert hit["quote"] == text
    assert await lexical.client.smembers(lexical.named("default", "red").namespaces) == {b"default"}
    await lexical.delete("note", "red")
    assert await lexical.found("secret", "red") == []
    assert await lexical.found("secret", "blue") == ["note"]
    await lexical.add("Here.", "a", ns="one")
    await lexical.add("Here.", "b", ns="two")
    for ns, names in (("one", ["a"]), ("two", ["b"]), ("default", [])):
        assert await lexical.found("here", ns=ns) == names
    reader = RagReader(lexical.client, lexical.keys.tag)
    assert await reader.namespaces() == ["default", "one", "two"]
