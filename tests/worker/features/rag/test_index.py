"""The index of a namespace: synonyms by words and vectors, and the bounded cache of indexes."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest

from sluice.common.contracts.rag import MOST_ALIASES, RagKeys
from sluice.common.features.rag import ontology
from sluice.common.features.rag.documents import DocumentRecord
from sluice.common.features.rag.ontology import OntologyReader, TermEntry, term_key
from sluice.worker.features.rag.errors import CorruptNamespace
from sluice.worker.features.rag.index import cache as module
from sluice.worker.features.rag.index.bm25 import Bm25Index
from sluice.worker.features.rag.index.cache import NamespaceCache
from sluice.worker.features.rag.index.namespace import MOST_WASTED, ChunkIndex, prepare_document
from sluice.worker.features.rag.index.ontology import Ontology, expand_query, synonym_terms
from sluice.worker.features.rag.store import RagStore, StoredText
from sluice.worker.features.rag.text.chunking import split_chunks
from sluice.worker.features.rag.text.terms import query_terms
from tests.support.worker.rag import RagMaker, RagWorker, WordEmbedder

pytestmark = pytest.mark.fakeredis_only

DLQ = TermEntry("dead letter queue", ("DLQ",))
SAYS_IT = "Messages that fail go to the dead letter queue and wait there for a person."
SHORT = "The DLQ keeps two thousand messages."
OTHER = "A letter came late; the queue at the counter was long."
ELSEWHERE = "Cats sleep on the sofa all day, and at night they hunt."


async def learn(worker: RagWorker, *entries: TermEntry, keys: RagKeys | None = None) -> None:
    """Write entries as the workflow scripts do."""
    keys = keys or worker.ns
    version = await worker.client.incr(keys.version)
    await worker.client.delete(keys.ontology, keys.ontology_version)
    for entry in entries:
        await worker.client.hset(keys.ontology, term_key(entry.term), entry.to_json())
        await worker.client.set(keys.ontology_version, version)


async def stock(worker: RagWorker) -> None:
    texts = {"says": SAYS_IT, "short": SHORT, "other": OTHER, "elsewhere": ELSEWHERE}
    for name, text in texts.items():
        await worker.add(text, name)


def names_in(query: str, *entries: TermEntry, languages: tuple[str, ...] = ("en",)) -> Any:
    return [(each.text, each.names) for each in Ontology(entries).find(query, languages)]


async def test_acronyms_and_expansions_find_each_other(rag: RagMaker) -> None:
    worker, other = await rag(), await rag(consumer="c2", opened=False)
    await stock(worker)
    assert await worker.found("DLQ") == ["short"]
    assert "short" not in await worker.found("dead letter queue")
    shelf = worker.library._cache.opened[0]
    assert not shelf.ontology
    assert await shelf.synonyms("DLQ") == []
    assert await other.search("DLQ") == ["short"]
    await learn(worker, DLQ)
    assert await worker.found("DLQ") == ["short", "says"]
    assert (await worker.found("dead letter queues"))[:2] == ["says", "short"]
    assert (await worker.found("What is in the dlq?", mode="lexical"))[:2] == ["short", "says"]
    await worker.check_spans((await worker.ask("DLQ"))["hits"])
    assert await other.search("DLQ") == ["short", "says"]  # every worker notices the change
    await learn(worker)
    assert await worker.found("DLQ") == ["short"]


async def test_terms_belong_to_a_namespace_of_a_tenant(lexical: RagWorker) -> None:
    for ns, tenant in (("default", ""), ("more", ""), ("default", "acme")):
        await lexical.add(SAYS_IT, "says", ns, tenant)
    await learn(lexical, DLQ, keys=lexical.named("default", "acme"))
    assert await lexical.found("DLQ", "acme") == ["says"]
    assert await lexical.found("DLQ") == []
    assert await lexical.found("DLQ", ns="more") == []


async def test_the_vector_of_a_query_includes_synonyms(rag: RagMaker) -> None:
    embedder = WordEmbedder()
    worker = await rag(embedder)
    await stock(worker)
    assert (await worker.found("DLQ", mode="vector", top_k=1)) == ["short"]
    await learn(worker, TermEntry("elsewhere hunt night sofa", ("DLQ",)))
    assert embedder.asked[-1] == "DLQ"
    assert (await worker.found("DLQ", mode="vector", top_k=1)) == ["elsewhere"]
    assert embedder.asked[-1] == "DLQ (elsewhere hunt night sofa)"
    await worker.found("a sofa")
    assert embedder.asked[-1] == "a sofa"


async def test_if_embedding_synonyms_fails_the_query_vector_is_used(rag: RagMaker) -> None:
    class Faulty(WordEmbedder):
        async def embed(self, texts: Any) -> Any:
            if "(" in texts[0]:
                raise ConnectionError("away")
            return await super().embed(texts)

    worker = await rag(Faulty())
    await stock(worker)
    await learn(worker, DLQ)
    assert (await worker.ask("DLQ"))["mode"] == "fused"


async def test_a_namespace_with_terms_stays_without_documents(lexical: RagWorker) -> None:
    """Only an undo removes them."""
    await lexical.add(SAYS_IT, "says")
    await learn(lexical, DLQ)
    assert await lexical.found("DLQ") == ["says"]
    before = await lexical.client.get(lexical.ns.version)
    await lexical.client.hset(lexical.ns.claims, "d:says", "wf_20260214_001 undo_00000000")
    await lexical.delete("says")
    assert int(await lexical.client.get(lexical.ns.version)) > int(before)
    ns = lexical.ns
    left = {ns.ontology, ns.ontology_version, ns.version, ns.namespaces}
    assert {name.decode() for name in await lexical.client.keys(f"{lexical.keys.tag}rag*")} == left
    assert await lexical.client.smembers(lexical.ns.namespaces) == {b"default"}
    assert await lexical.found("DLQ") == []
    await lexical.add(SAYS_IT, "says")
    assert await lexical.found("DLQ") == ["says"]


async def test_invalid_entries_are_ignored(lexical: RagWorker) -> None:
    await lexical.add(SAYS_IT, "says")
    await learn(lexical, DLQ)
    for field, raw in (("a", b"{"), ("b", b"[]"), ("c", b'{"term":"x"}'), ("d", b"\xff")):
        await lexical.client.hset(lexical.ns.ontology, field, raw)
    assert await lexical.found("DLQ") == ["says"]
    page = await OntologyReader(lexical.client).list(lexical.ns)
    assert [entry.term for entry in page.entries] == ["dead letter queue"]
    # A key of the wrong type is reported.
    await lexical.client.delete(lexical.ns.ontology)
    await lexical.client.set(lexical.ns.ontology, "x")
    version = await lexical.client.incr(lexical.ns.version)
    await lexical.client.set(lexical.ns.ontology_version, version)
    assert (await lexical.do({"query": "DLQ"})).kind == "store_corrupt"


def test_names_are_found_however_they_are_written() -> None:
    others = ("dead letter queue",)
    assert names_in("the DLQ", DLQ) == [("DLQ", others)]
    assert names_in("what are DLQs?", DLQ) == [("DLQs", others)]
    assert names_in("Dead-Letter Queues are", DLQ) == [("Dead-Letter Queues", ("DLQ",))]
    assert names_in("dead letters in a queue", DLQ) == []
    assert names_in("DLQ", TermEntry("dead letter queue")) == []
    assert names_in("colour", TermEntry("color", ("colour",))) == [("colour", ("color",))]
    # The longest name counts.
    entries = (DLQ, TermEntry("queue", ("line",)), TermEntry("letter", ("missive",)))
    assert names_in("dead letter queue or queue", *entries) == [
        ("dead letter queue", ("DLQ",)),
        ("queue", ("line",)),
    ]
    # A name of two terms stands for both.
    other = TermEntry("data link quality", ("DLQ", "link quality"))
    [(text, names)] = names_in("DLQ", DLQ, other)
    assert (text, set(names)) == ("DLQ", {*others, "data link quality", "link quality"})
    # Scripts without blanks, and forms of every language of the namespace.
    entry = TermEntry("東京都", ("Tokyo",))
    assert names_in("私は東京都に住む", entry) == [("東京都", ("Tokyo",))]
    assert names_in("Tokyo", entry) == [("Tokyo", ("東京都",))]
    german = TermEntry("Warteschlange", ("queue",))
    found = names_in("Warteschlangen", german, languages=("de", "en"))
    assert found == [("Warteschlangen", ("queue",))]


def test_common_words_are_names_only_if_they_are_written_so() -> None:
    entry = TermEntry("information technology", ("IT",))
    assert names_in("how does it work", entry) == []
    assert names_in("who is in IT", entry) == [("IT", ("information technology",))]
    # Every text contains `it`, so it does not help to find the expansion.
    words = query_terms("information technology", {"en"})
    renamed = Ontology([entry]).find("information technology", ["en"])
    assert synonym_terms(words, renamed, ["en"]) == {0: [], 1: []}
    words = query_terms("who is in IT today", {"en"})
    renamed = Ontology([entry]).find("who is in IT today", ["en"])
    [number] = synonym_terms(words, renamed, ["en"])
    assert words[number] == ()


def test_expanding_a_query() -> None:
    query = "is the DLQ full, and the DLQ old?"
    expanded = query.replace("DLQ", "DLQ (dead letter queue)")
    assert expand_query(query, Ontology([DLQ]).find(query, ["en"])) == expanded
    assert expand_query("cafe\u0301", []) == "cafe\u0301"


def index_of(*chunks: str) -> Bm25Index:
    index = Bm25Index()
    for chunk in chunks:
        index.add(Counter(chunk.split()))
    return index


def test_a_name_needs_all_its_words_and_counts_as_one() -> None:
    index = index_of("dead letter queue", "dead letter", "letter queue x", "dlq y z", "x y z")
    names = {0: [[["dead"], ["letter"], ["queue"]]]}
    assert [number for number, _ in index.shares([["dlq"]], 9, names)] == [3, 0]
    both = dict(index.shares([["dlq"], ["y"]], 9, names))
    assert both[3] == max(both.values())
    assert set(both) == {0, 3, 4}


def test_the_words_of_the_query_rank_above_synonyms() -> None:
    index = index_of("dlq a b c d e f g", "alias alias alias alias b c d e", "q r s t u v w x")
    found = index.shares([["dlq"]], 9, {0: [[["alias"]]]})
    assert [number for number, _ in found] == [0, 1]
    more = index_of("alias b c d", "alias alias c d", "q r s t")
    assert [number for number, _ in more.shares([["dlq"]], 9, {0: [[["alias"]]]})] == [1, 0]


@pytest.mark.parametrize("names", [None, {}, {0: []}, {0: [[]]}, {0: [[["nowhere"]]]}])
def test_without_other_names_nothing_changes(names: Any) -> None:
    index = index_of("dead letter queue", "dead letter", "queue x")
    words = [["dead"], ["queue"]]
    assert index.shares(words, 9, names) == index.shares(words, 9)


def test_entries_keep_what_they_are() -> None:
    entry = TermEntry("Café", ("kaffee",), "term_alias", "wf_20260214_001", "p_001", 17)
    assert TermEntry.from_json(entry.to_json()) == entry
    assert ontology.parse_entries({b"b": DLQ.to_json(), b"a": entry.to_json()}) == [entry, DLQ]
    many = TermEntry("x", tuple(map(str, range(500))))
    read = TermEntry.from_json(many.to_json())
    assert len(read.aliases) == MOST_ALIASES
    assert term_key("  Dead \n LETTER  Queue ") == "dead letter queue"
    assert len(ontology.normalize_name("x" * 1000)) == 200


# -- the cache of namespaces: incremental and bounded --------------------------------------------


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
    monkeypatch.setattr("sluice.worker.features.rag.vectors.base.MOST_ITEMS", 2)
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
