"""Finds chunks by words, by nearness, or by both; for jobs, for tools, for whoever asks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from redis.exceptions import RedisError

from common.contracts.rag import RagKeys, SearchMode
from worker.errors import TransientError
from worker.features.embedding.types import Embedder, NoEmbedder
from worker.features.rag.index.cache import NamespaceCache, NamespaceIndex, OnLoadProgress
from worker.features.rag.index.namespace import ScoredChunk
from worker.features.rag.index.ontology import SynonymMatch, expand_query
from worker.features.rag.store import RagStore

log = logging.getLogger(__name__)

#: How much nearness counts beside words, where there is both.
VECTOR_WEIGHT: Final = 0.4
#: Each way brings so many candidates, or several times what is asked for.
MIN_CANDIDATES: Final = 50
_CANDIDATES_PER_HIT: Final = 4
_NO_VECTORS: Final = (
    "there are no vectors to search by: run `sluice model install` or set EMBED_URL, and install "
    "the extra `rag`; mode `lexical` works without"
)
#: How often a search is done again because what it found had just changed.
_TRIES: Final = 3


@dataclass(frozen=True)
class Hit:
    """A chunk that was found: `quote` is the document's `text[start:end]`."""

    document_id: str
    title: str
    score: float
    start: int
    end: int
    quote: str
    #: To find it again in Redis, and to know that it is still the same.
    byte_start: int = 0
    revision: str = ""

    def view(self) -> dict[str, Any]:
        return {
            "document_id": self.document_id,
            "title": self.title,
            "score": round(self.score, 6),
            "start": self.start,
            "end": self.end,
            "quote": self.quote,
        }


class SearchResult(NamedTuple):
    """The hits, best first, and how they were found: lexical, vector or fused."""

    hits: list[Hit]
    mode: SearchMode


class _SearchRequest(NamedTuple):
    """A query, what it is called here beside, its vector, and how much is wanted in which way."""

    query: str
    synonyms: Sequence[SynonymMatch]
    vector: Sequence[float] | None
    depth: int
    mode: SearchMode


class Searcher:
    """Searches namespaces, each on its own. `opened` is told which ones were."""

    def __init__(
        self,
        store: RagStore,
        shelves: NamespaceCache,
        embedder: Embedder,
        opened: Callable[[NamespaceIndex], None] | None = None,
    ) -> None:
        self._store = store
        self._cache = shelves
        self._embedder = embedder
        self._on_open = opened

    async def find(
        self,
        keys: RagKeys,
        query: str,
        k: int,
        mode: SearchMode = SearchMode.AUTO,
        watch: OnLoadProgress | None = None,
    ) -> SearchResult:
        """The best `k` chunks. What is asked for by vector and cannot be raises NoEmbedder."""
        try:
            return await self._find(keys, query, k, mode, watch)
        except RedisError as error:
            raise TransientError(f"Redis is away: {error}") from error

    async def _find(
        self, keys: RagKeys, query: str, k: int, mode: SearchMode, watch: OnLoadProgress | None
    ) -> SearchResult:
        # First of all: an embedder may not know its name before it has made a vector.
        vector, embedded = await self._vector(query, mode), query
        found = SearchResult([], SearchMode.LEXICAL)
        for _ in range(_TRIES):
            shelf = await self._cache.open(keys, self._embedder.name, watch)
            if self._on_open is not None:
                self._on_open(shelf)
            renamed = await shelf.synonyms(query)
            if vector is not None and embedded != expand_query(query, renamed):
                embedded = expand_query(query, renamed)
                again = await self._vector(embedded, mode)
                vector = vector if again is None else again
            asked = _SearchRequest(
                query, renamed, vector, max(MIN_CANDIDATES, _CANDIDATES_PER_HIT * k), mode
            )
            scored, done = await self._rank(shelf, asked)
            found = SearchResult(await self._quote(shelf, scored[:k]), done)
            if len(found.hits) == len(scored[:k]):
                break  # else some have changed since the index was read
        return found

    async def _vector(self, query: str, mode: SearchMode) -> Sequence[float] | None:
        """The query's vector; None where it is not wanted, or cannot be had and need not."""
        if mode is SearchMode.LEXICAL:
            return None
        if not self._embedder.ready:
            if mode is SearchMode.VECTOR:
                raise NoEmbedder(_NO_VECTORS)
            return None
        try:
            [vector] = await self._embedder.embed([query])
        except Exception as error:
            if mode is SearchMode.VECTOR:
                raise
            log.warning("the query got no vector, so only its words count: %s", error)
            return None
        return vector

    async def _rank(
        self, shelf: NamespaceIndex, asked: _SearchRequest
    ) -> tuple[list[ScoredChunk], SearchMode]:
        nearness, vector = shelf.vectors, asked.vector
        if asked.mode is SearchMode.VECTOR:
            if nearness is None or vector is None:
                raise NoEmbedder(_NO_VECTORS)
            return await nearness.search(vector, asked.depth), asked.mode
        worded = await shelf.search(asked.query, asked.depth, asked.synonyms)
        if vector is None or not nearness:
            return worded, SearchMode.LEXICAL
        return fuse_rankings(worded, await nearness.search(vector, asked.depth)), SearchMode.FUSED

    async def _quote(self, shelf: NamespaceIndex, scored: Sequence[ScoredChunk]) -> list[Hit]:
        """What the chunks say, read from Redis; those that have changed meanwhile are left out."""
        known = [
            (each, indexed)
            for each, indexed in ((each, shelf.get(each.ref.document_id)) for each in scored)
            if indexed is not None and each.ref.chunk < len(indexed.offsets)
        ]
        spans = [
            indexed.offsets.byte_span(each.ref.document_id, each.ref.chunk)
            for each, indexed in known
        ]
        hits = []
        cut = await self._store.cut(shelf.keys, spans)
        for (each, indexed), span, (record, quote) in zip(known, spans, cut):
            start, end = indexed.offsets.span(each.ref.chunk)
            if record is None or record.revision != indexed.record.revision:
                continue
            if len(quote) == end - start:
                place = (start, end, quote, span.start, record.revision)
                hits.append(Hit(record.id, record.title, each.score, *place))
        return hits


def fuse_rankings(worded: Sequence[ScoredChunk], near: Sequence[ScoredChunk]) -> list[ScoredChunk]:
    """Two rankings as one, by how good a chunk is in each.

    By words that is the share of the query it covers. By vectors it is how far it stands out: from
    the last one that was found, at 0, to one that says the same, at 1. What is called near differs
    from model to model, and so does a ranking's worth from query to query, which ranks alone do
    not tell.
    """
    scores = {each.ref: (1 - VECTOR_WEIGHT) * each.score for each in worded}
    floor = min(near[-1].score, 0.99) if near else 0.0
    for each in near:
        above = (each.score - floor) / (1 - floor)
        scores[each.ref] = scores.get(each.ref, 0.0) + VECTOR_WEIGHT * above
    best = sorted(scores.items(), key=lambda item: -item[1])
    return [ScoredChunk(place, score) for place, score in best]
