"""The cache of namespaces: incremental and bounded."""

from __future__ import annotations

import asyncio
import itertools

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


async def add_texts(worker: RagWorker, count: int = 5) -> None:
    for number in range(count):
        await worker.add(f"Text {number}.", f"d{number}")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of texts in each read from Redis."""
    read: list[int] = []
    texts = RagStore.texts

    async def noting(self: RagStore, keys: RagKeys, names: list[str]) -> list[StoredText]:
        read.append(len(names))
        return await texts(self, keys, names)

    monkeypatch.setattr(RagStore, "texts", noting)
    return read


async def test_only_changed_texts_are_read(lexical: RagWorker, reads: list[int]) -> None:
    await add_texts(lexical)
    # Concurrent searches share one read.
    found = await asyncio.gather(*(lexical.search("text") for _ in range(10)))
    assert [len(names) for names in found] == [5] * 10
    assert reads == [5]
    await lexical.found("text")
    assert reads == [5]
    await lexical.add("Text, new.", "d3")
    await lexical.found("text")
    assert reads == [5, 1]
    await lexical.delete("d1")
    assert len(await lexical.found("text")) == 4
    assert reads == [5, 1]


async def test_a_large_namespace_is_read_in_batches(
    lexical: RagWorker, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.features.rag.vectors.base.MOST_ITEMS", 2)
    await add_texts(lexical)
    assert len(await lexical.found("text", top_k=9)) == 5
    assert reads == [2, 2, 1]


async def test_a_waiter_gets_progress_and_may_be_canceled(
    lexical: RagWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_texts(lexical, 3)
    monkeypatch.setattr(module, "PROGRESS_EVERY_S", 0.01)
    texts, go, heard = RagStore.texts, asyncio.Event(), asyncio.Event()

    async def slow(self: RagStore, keys: RagKeys, names: list[str]) -> list[StoredText]:
        await go.wait()
        return await texts(self, keys, names)

    monkeypatch.setattr(RagStore, "texts", slow)
    reported: list[tuple[int, int]] = []

    async def watch(done: int, total: int) -> None:
        reported.append((done, total))
        if total:
            heard.set()

    cache = lexical.library._cache
    impatient = asyncio.create_task(cache.open(lexical.ns, "", watch))
    patient = asyncio.create_task(cache.open(lexical.ns))
    await heard.wait()
    impatient.cancel()
    go.set()
    assert (await patient).loaded == 3
    assert reported[-1] == (0, 3)


async def test_a_job_reports_the_progress_of_embedding(rag: RagMaker) -> None:
    worker = await rag(WordEmbedder())
    text = "\n\n".join(["A paragraph of some length, to make several chunks. " * 15] * 6)
    ended = await worker.do({"op": "ingest", "document": {"text": text}})
    chunks = ended.result["chunks"]
    assert ended.events("progress") == [{"done": chunks // 2, "total": chunks, "attempt": 1}]


async def test_the_least_used_namespaces_go_first(lexical: RagWorker) -> None:
    for ns in ("a", "b", "c"):
        await lexical.add("Some words of a text.", "d", ns=ns)
    store = RagStore(lexical.client, 10)
    size = (await NamespaceCache(lexical.client, store).open(lexical.named("a"))).size_bytes
    shelves = NamespaceCache(lexical.client, store, most_bytes=int(2.5 * size))
    for ns in ("a", "b", "a", "c"):
        await shelves.open(lexical.named(ns))
    assert [shelf.keys.namespace for shelf in shelves.opened] == ["a", "c"]
    alone = NamespaceCache(lexical.client, store, most_bytes=1)
    for ns in ("a", "b"):
        assert (await alone.open(lexical.named(ns))).loaded == 1
    assert [shelf.keys.namespace for shelf in alone.opened] == ["b"]
    await shelves.close()


async def test_namespaces_that_do_not_exist_leave_no_trace(
    lexical: RagWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_CACHED", 3)
    for number in range(9):
        assert await lexical.library.search("", f"n{number}", "x", 5) == []
    assert len(lexical.library._cache.opened) == 3
    assert await lexical.client.keys("rag*") == []


async def test_corrupt_documents_are_skipped(lexical: RagWorker) -> None:
    for name in ("good", "no-record", "no-text", "no-chunks"):
        await lexical.add("Words.", name)
    await lexical.client.hset(lexical.ns.documents, "no-record", b"junk")  # type: ignore[misc]
    await lexical.client.delete(lexical.ns.text("no-text"))
    await lexical.client.set(lexical.ns.chunks("no-chunks"), b'[[0,99],["x"],[3,1]]')
    assert await lexical.found("words") == ["good"]
    await lexical.client.delete(lexical.ns.order)
    await lexical.client.rpush(lexical.ns.order, "x")  # type: ignore[misc]
    await lexical.client.incr(lexical.ns.version)
    assert (await lexical.do({"query": "words"})).kind == CorruptNamespace.kind


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
    lexical: RagWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lexical.add("Text.", "only")
    version, asked = RagStore.version, itertools.count()

    async def going(self: RagStore, keys: RagKeys) -> int:
        found = await version(self, keys)
        if next(asked) == 0:  # its last document is deleted right after this read
            await lexical.client.delete(
                *(keys.documents, keys.version, keys.order, keys.text("only"), keys.chunks("only"))
            )
        return found

    monkeypatch.setattr(RagStore, "version", going)
    assert await asyncio.wait_for(lexical.found("text"), 10) == []
