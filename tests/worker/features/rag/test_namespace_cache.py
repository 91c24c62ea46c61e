"""The cache of namespaces: incremental and bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common.contracts.rag import RagKeys
from common.features.rag.documents import DocumentRecord
from tests.support.worker.rag import RagMaker, RagWorker, WordEmbedder
from worker.features.rag.errors import CorruptNamespace
from worker.features.rag.index import cache as module
from worker.features.rag.index.cache import NamespaceCache
from worker.features.rag.index.namespace import MOST_WASTED, ChunkIndex, prepare_document
from worker.features.rag.store import RagStore, StoredText
from worker.features.rag.text.chunking import split_chunks

pytestmark = pytest.mark.fakeredis_only


async def counted(worker: RagWorker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of texts in each read from Redis."""
    read: list[int] = []
    texts = RagStore.texts

    async def noting(self: RagStore, keys: RagKeys, names: list[str]) -> list[StoredText]:
        read.append(len(names))
        return await texts(self, keys, names)

    monkeypatch.setattr(RagStore, "texts", noting)
    return read


async def test_only_changed_texts_are_read(rag: RagMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await rag()
    for number in range(5):
        await worker.add(f"Text {number}.", f"d{number}")
    read = await counted(worker, monkeypatch)
    # Concurrent searches share one read.
    searches = (worker.library.search("", "default", "text", 9) for _ in range(10))
    assert [len(hits) for hits in await asyncio.gather(*searches)] == [5] * 10
    assert read == [5]
    await worker.found("text")
    assert read == [5]
    await worker.add("Text, new.", "d3")
    await worker.found("text")
    assert read == [5, 1]
    await worker.do({"op": "delete", "document_id": "d1"})
    assert len(await worker.found("text")) == 4
    assert read == [5, 1]


async def test_a_large_namespace_is_read_in_batches(rag: RagMaker, monkeypatch: Any) -> None:
    monkeypatch.setattr("worker.features.rag.vectors.base.MOST_ITEMS", 2)
    worker = await rag()
    for number in range(5):
        await worker.add(f"Text {number}.", f"d{number}")
    read = await counted(worker, monkeypatch)
    assert len(await worker.found("text", top_k=9)) == 5
    assert read == [2, 2, 1]


async def test_a_waiter_gets_progress_and_may_be_canceled(
    rag: RagMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await rag()
    for number in range(3):
        await worker.add(f"Text {number}.", f"d{number}")
    monkeypatch.setattr(module, "PROGRESS_EVERY_S", 0.01)
    gate = asyncio.Event()
    texts = RagStore.texts

    async def slow(self: RagStore, keys: RagKeys, names: list[str]) -> list[StoredText]:
        await gate.wait()
        return await texts(self, keys, names)

    monkeypatch.setattr(RagStore, "texts", slow)
    reported: list[tuple[int, int]] = []
    heard = asyncio.Event()

    async def watch(done: int, total: int) -> None:
        reported.append((done, total))
        if total:
            heard.set()

    shelves = worker.library._cache
    impatient = asyncio.create_task(shelves.open(worker.ns, "", watch))
    patient = asyncio.create_task(shelves.open(worker.ns))
    await heard.wait()
    impatient.cancel()
    gate.set()
    assert (await patient).loaded == 3
    assert reported[-1] == (0, 3)


async def test_a_job_reports_the_progress_of_loading(
    rag: RagMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await rag(WordEmbedder())
    text = "\n\n".join(["A paragraph of some length, to make several chunks. " * 15] * 6)
    ended = await worker.do({"op": "ingest", "document": {"text": text}})
    chunks = ended.result["chunks"]
    assert ended.events("progress") == [{"done": chunks // 2, "total": chunks, "attempt": 1}]


async def test_the_least_used_namespaces_go_first(rag: RagMaker) -> None:
    worker = await rag()
    for ns in ("a", "b", "c"):
        await worker.add("Some words of a text.", "d", ns=ns)
    store = RagStore(worker.client, 10)
    size = (await NamespaceCache(worker.client, store).open(worker.named("a"))).size_bytes
    shelves = NamespaceCache(worker.client, store, most_bytes=int(2.5 * size))
    for ns in ("a", "b", "a", "c"):
        await shelves.open(worker.named(ns))
    assert [shelf.keys.namespace for shelf in shelves.opened] == ["a", "c"]
    alone = NamespaceCache(worker.client, store, most_bytes=1)
    assert (await alone.open(worker.named("a"))).loaded == 1
    assert (await alone.open(worker.named("b"))).loaded == 1
    assert [shelf.keys.namespace for shelf in alone.opened] == ["b"]
    await shelves.close()


async def test_namespaces_that_do_not_exist_leave_no_trace(
    rag: RagMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_CACHED", 3)
    worker = await rag()
    for number in range(9):
        assert await worker.library.search("", f"n{number}", "x", 5) == []
    assert len(worker.library._cache.opened) == 3
    assert await worker.client.keys("rag*") == []


async def test_corrupt_documents_are_skipped(rag: RagMaker) -> None:
    worker = await rag()
    for name in ("good", "no-record", "no-text", "no-chunks"):
        await worker.add("Words.", name)
    await worker.client.hset(worker.ns.documents, "no-record", b"junk")  # type: ignore[misc]
    await worker.client.delete(worker.ns.text("no-text"))
    await worker.client.set(worker.ns.chunks("no-chunks"), b'[[0,99],["x"],[3,1]]')
    assert await worker.found("words") == ["good"]
    await worker.client.delete(worker.ns.order)
    await worker.client.rpush(worker.ns.order, "x")  # type: ignore[misc]
    await worker.client.incr(worker.ns.version)
    assert (await worker.do({"query": "words"})).kind == CorruptNamespace.kind


def test_the_memory_of_an_index_is_bounded() -> None:
    """However often documents are replaced, its size depends only on what it contains."""
    index = ChunkIndex()
    names = [f"d{number}" for number in range(50)]
    sizes = []
    for number in range(40):
        for name in names:
            text = f"Words of round {number} and {name}. " * 30
            index.put(prepare_document(stored(name, text)))
        sizes.append(index.size_bytes)
        assert index._lexical.wasted <= 2 * MOST_WASTED or len(index._owners) < 2000
    assert max(sizes[20:]) < 2.5 * min(sizes[:5])
    assert {each.ref.document_id for each in index.search("round 39", 200)} == set(names)
    index.drop(names)
    assert index.search("round", 5) == []
    assert index.documents == {}


def stored(name: str, text: str) -> StoredText:
    spans = split_chunks(text)
    record = DocumentRecord(name, name, "text/plain", len(text), len(spans), "", text[:40])
    return StoredText(record, text, spans)


async def test_a_namespace_that_goes_while_it_is_opened(
    rag: RagMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await rag()
    await worker.add("Text.", "only")
    version = RagStore.version
    asked = 0

    async def going(self: RagStore, keys: RagKeys) -> int:
        nonlocal asked
        asked += 1
        found = await version(self, keys)
        if asked == 1:  # its last document is deleted right after this read
            await worker.client.delete(
                *(keys.documents, keys.version, keys.order, keys.text("only"), keys.chunks("only"))
            )
        return found

    monkeypatch.setattr(RagStore, "version", going)
    assert await asyncio.wait_for(worker.found("text"), 10) == []
