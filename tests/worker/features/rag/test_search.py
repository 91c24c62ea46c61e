"""Search by words, by vectors and by both; the backfill of missing vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from redis.exceptions import RedisError

from sluice.common.contracts.rag import SearchMode
from sluice.common.features.rag.documents import DocumentRecord
from sluice.worker.features.rag.index.namespace import ChunkRef, ScoredChunk
from sluice.worker.features.rag.ingest import texts_to_embed
from sluice.worker.features.rag.search import VECTOR_WEIGHT, fuse_rankings
from sluice.worker.features.rag.text.chunking import Span
from sluice.worker.features.rag.vectors.document_vectors import vector_name
from tests.support.waiting import eventually
from tests.support.worker.rag import RagMaker, RagWorker, WordEmbedder

CARS = "A car has four wheels and an engine."
CATS = "A cat sleeps on the sofa all day."
TALK = "The word automobile is long."


async def stock(worker: RagWorker) -> None:
    for name, text in (("cars", CARS), ("cats", CATS), ("talk", TALK)):
        await worker.add(text, name)


async def test_vectors_find_matches_without_common_words(rag: RagMaker) -> None:
    worker = await rag(WordEmbedder())
    await stock(worker)
    lexical = await worker.ask("automobile engine wheels", mode="lexical")
    assert lexical["mode"] == "lexical"
    vector = await worker.ask("automobile wheels engine", mode="vector", top_k=1)
    assert vector["mode"] == "vector"
    assert [hit["document_id"] for hit in vector["hits"]] == ["cars"]
    assert await worker.found("feline", mode="lexical") == []
    assert (await worker.found("feline sleeps", mode="vector"))[0] == "cats"
    both = await worker.ask("automobile")
    assert both["mode"] == "fused"
    assert {"cars", "talk"} <= {hit["document_id"] for hit in both["hits"]}
    for answer in (lexical, vector, both):
        await worker.check_spans(answer["hits"])


@pytest.mark.fakeredis_only
async def test_missing_vectors_are_backfilled(rag: RagMaker) -> None:
    worker = await rag()
    await worker.add(CARS, "without")
    assert (await worker.ask("car"))["mode"] == "lexical"
    assert (await worker.do({"query": "car", "mode": "vector"})).kind == "no_embedder"
    await worker.delete("without")
    await worker.stop()
    embedder = WordEmbedder()
    embedder.fault = ConnectionError("the server is down")
    worker = await rag(embedder, consumer="c2")
    worker.library._backfill._pause_s = 0.01

    async def backfilled() -> bool:
        await worker.search("x", SearchMode.LEXICAL)
        return (await worker.record("cars")).embedder == "words-64"

    assert (await worker.add(CARS, "cars"))["embedder"] == ""
    answer = await worker.ask("car")
    assert (answer["mode"], answer["hits"][0]["document_id"]) == ("lexical", "cars")
    embedder.fault = None
    await eventually(backfilled)
    assert await worker.found("automobile", mode="vector") == ["cars"]
    embedder.fault = ConnectionError("the server is down")
    assert (await worker.ask("car"))["mode"] == "lexical"
    record = await worker.record("cars")
    assert vector_name(record) != vector_name(record.with_embedder("other"))
    assert vector_name(record).startswith("cars@")
    await worker.delete("cars")
    assert not await worker.client.exists(worker.ns.vector_set, worker.ns.vectors("cars"))


@pytest.mark.parametrize("dimensions", [64, 96])
async def test_vectors_of_another_model_are_replaced(rag: RagMaker, dimensions: int) -> None:
    old = await rag(WordEmbedder("old-64"), consumer="old")
    await stock(old)
    await old.stop()
    embedder = WordEmbedder("new", dimensions=dimensions)
    new = await rag(embedder, consumer="new", background=False)
    assert await new.found("automobile", mode="vector") == []
    assert (await new.ask("car"))["mode"] == "lexical"
    for name in ("cars", "cats", "talk"):
        assert (await new.record(name)).embedder == "old-64"
    for _ in range(3):
        assert (await new.ask("car"))["hits"][0]["document_id"] == "cars"
        await new.library._backfill.run_once()
    assert (await new.found("feline sleeps", mode="vector"))[0] == "cats"
    assert len(await new.found("x", mode="vector")) == 3
    assert len(new.library._cache.opened[0].vectors) == 3  # type: ignore[arg-type]
    assert not new.library._backfill._pending
    version = await new.client.get(new.ns.version)
    await new.library._backfill.run_once()
    assert await new.client.get(new.ns.version) == version


@pytest.mark.fakeredis_only
async def test_an_embedder_that_learns_its_name_late(rag: RagMaker) -> None:
    class Shy(WordEmbedder):
        async def embed_all(self, *args: Any, **more: Any) -> Any:
            self.name = "shy-64"
            return await super().embed_all(*args, **more)

    first = await rag(Shy(), consumer="first")
    assert (await first.add(CARS, "cars"))["embedder"] == "shy-64"
    await first.stop()
    shy = Shy()
    shy.name = ""
    second = await rag(shy, consumer="second")
    assert await second.found("automobile", mode="vector") == ["cars"]


async def vector_count(worker: RagWorker) -> int:
    try:
        return int(await worker.client.execute_command("VCARD", worker.ns.vector_set))
    except RedisError:
        pytest.skip("this Redis has no vector sets")


@pytest.mark.parametrize("fault", ["missing", "orphaned"])
async def test_shared_vectors_are_made_consistent(rag: RagMaker, fault: str) -> None:
    """A worker may die between the commit of a document and adding its vectors."""
    worker = await rag(WordEmbedder(), consumer="one")
    await stock(worker)
    assert await vector_count(worker) == 3
    if fault == "missing":
        await worker.client.delete(worker.ns.vector_set)
    else:
        blob = b"\0\0\x80?" + b"\0" * 252
        pipe = worker.client.pipeline(transaction=False)
        for number in range(1100):
            pipe.execute_command("VADD", worker.ns.vector_set, "FP32", blob, f"ghost@{number}:0")
        await pipe.execute()
    other = await rag(WordEmbedder(), consumer="two", background=False)
    shelf = await other.library._cache.open(worker.ns, "words-64")
    if fault == "missing":
        assert shelf.vectors.missing == {"cars", "cats", "talk"}
    other.library._backfill.enqueue(shelf)
    await other.library._backfill.run_once()
    assert await vector_count(other) == 3
    assert (await other.found("automobile wheels", mode="vector"))[0] == "cars"


def test_markup_is_stripped_before_embedding() -> None:
    text = "# Limits\n| name | what |\n|---|---:|\n| `MAX` | **most**, see [here](a.md) and x[0] |"
    record = DocumentRecord("d", "Limits", "text/markdown", len(text), 1, "", "1")
    [made] = texts_to_embed(record, text, [Span(0, len(text))])
    assert " ".join(made.split()) == "Limits # Limits name what MAX most , see here and x[0]"
    plain = replace(record, media_type="text/plain")
    assert texts_to_embed(plain, text, [Span(0, len(text))]) == [f"Limits\n{text}"]
    # Pathological input takes no time.
    hard = "|-" * 600 + "x" + "[" * 1200 + "](" * 600
    texts_to_embed(record, hard, [Span(0, len(hard))] * 100)


def test_two_rankings_are_fused() -> None:
    a, b, c, d = (ChunkRef(name, 0) for name in "abcd")
    worded = [ScoredChunk(a, 0.9), ScoredChunk(b, 0.5)]
    near = [ScoredChunk(b, 0.8), ScoredChunk(c, 0.6), ScoredChunk(d, 0.2)]
    ranked = fuse_rankings(worded, near)
    assert [each.ref for each in ranked] == [b, a, c, d]
    by_words, by_vectors = (1 - VECTOR_WEIGHT) * 0.5, VECTOR_WEIGHT * (0.8 - 0.2) / (1 - 0.2)
    assert ranked[0].score == pytest.approx(by_words + by_vectors)
    # A single ranking keeps its order.
    assert [each.ref for each in fuse_rankings([], near)] == [b, c, d]
    assert [each.ref for each in fuse_rankings(worded, [])] == [a, b]
    equal = [ScoredChunk(a, 1.0), ScoredChunk(b, 1.0)]
    assert [each.ref for each in fuse_rankings([], equal)] == [a, b]


@pytest.mark.parametrize("spread", [1.0, 0.1])
def test_models_with_a_narrow_range_of_cosines(spread: float) -> None:
    """Cosines between 0.9 and 1 are rescaled like those between 0 and 1."""
    far, near = ChunkRef("far", 0), ChunkRef("near", 0)
    others = [ScoredChunk(ChunkRef("other", number), 1 - spread) for number in range(9)]
    cosines = [ScoredChunk(near, 1 - 0.2 * spread), *others]
    assert fuse_rankings([ScoredChunk(far, 0.3)], cosines)[0].ref == near
    assert fuse_rankings([ScoredChunk(far, 0.8)], cosines)[0].ref == far


@pytest.mark.fakeredis_only
async def test_a_document_that_changes_in_the_middle_of_a_search(
    lexical: RagWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quote equals the stored text, even if the index was out of date."""
    await lexical.add("The lease is long.", "doc")
    await lexical.found("lease")
    searcher = lexical.library._searcher
    rank, changes = searcher._rank, iter(["Not that word.", "Again: the lease is short."])

    async def change_and_rank(*args: Any) -> Any:
        ranked = await rank(*args)
        for text in changes:
            await lexical.add(text, "doc")
            break
        return ranked

    monkeypatch.setattr(searcher, "_rank", change_and_rank)
    hits = await lexical.library.search("", "default", "lease", 5)
    assert [hit.quote for hit in hits] in ([], ["Again: the lease is short."])


@pytest.mark.fakeredis_only
async def test_titles_and_headings_count(lexical: RagWorker) -> None:
    padding = "Nothing much happens here, for quite a while. " * 30
    text = f"# Brewing\n\n{padding}\n\n## Oolong\n\n{padding}"
    await lexical.add(text, "tea", media_type="text/markdown")
    await lexical.add(padding, "other", title="Fishing")
    hits = (await lexical.ask("oolong", top_k=10))["hits"]
    assert len(hits) > 1  # all chunks below the heading, not only the one that contains it
    assert all(hit["start"] >= text.index("## Oolong") for hit in hits)
    assert (await lexical.found("fishing")) == ["other"]


@pytest.mark.fakeredis_only
async def test_languages_and_identifiers_of_a_namespace(lexical: RagWorker) -> None:
    await lexical.add("Die Häuser der Stadt sind nicht alt, und das ist auch gut.", "de")
    await lexical.add("The houses of the city are not old, and that is good.", "en")
    await lexical.add("東京都は日本の首都です。とても大きい。", "ja")
    await lexical.add("Les maisons de la ville ne sont pas vieilles, et elle est belle.", "fr")
    for query, found in (("Haus", "de"), ("house", "en"), ("日本", "ja"), ("maison", "fr")):
        assert await lexical.found(query) == [found]
    assert (await lexical.found("MAX_INFLIGHT")) == []
    await lexical.add("Set MAX_INFLIGHT to four; jobId is a UUID.", "settings")
    await lexical.add("The maximum of the sum.", "maths")
    for query in ("MAX_INFLIGHT", "max_inflight", "inflight", "job_id", "jobid"):
        assert (await lexical.found(query))[:1] == ["settings"], query
