"""Finds chunks by words (lexical), by vectors, or by both (fused)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from redis.exceptions import RedisError

from sluice.common.contracts.rag import RagKeys, SearchMode
from sluice.worker.errors import TransientError
from sluice.worker.features.embedding.types import Embedder, NoEmbedder
from sluice.worker.features.rag.index.cache import NamespaceCache, NamespaceIndex, OnLoadProgress
from sluice.worker.features.rag.index.namespace import ScoredChunk
from sluice.worker.features.rag.index.ontology import SynonymMatch, expand_query
from sluice.worker.features.rag.store import RagStore

log = logging.getLogger(__name__)

#: Weight of the vector score in a fused ranking.
VECTOR_WEIGHT: Final = 0.4
#: Candidates per ranking: this many, or a multiple of the requested hits if that is more.
MIN_CANDIDATES: Final = 50
_CANDIDATES_PER_HIT: Final = 4
_NO_VECTORS: Final = (
    "vector search is unavailable: run `sluice model install` or set EMBED_URL, and install "
    "the extra `rag`; mode `lexical` works without it"
)
#: Attempts of a search whose hits changed before they were read.
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
    #: To locate the quote in Redis and verify that it has not changed.
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
    """Hits, best first, and how they were found: lexical, vector or fused."""

    hits: list[Hit]
    mode: SearchMode


class _SearchRequest(NamedTuple):
    """A query with synonyms, vector, number of candidates and mode."""

    query: str
    synonyms: Sequence[SynonymMatch]
    vector: Sequence[float] | None
    depth: int
    mode: SearchMode


class Searcher:
    """Searches namespaces. `opened` is called with the index of each namespace searched."""

    def __init__(
        self,
        store: RagStore,
        cache: NamespaceCache,
        embedder: Embedder,
        opened: Callable[[NamespaceIndex], None] | None = None,
    ) -> None:
        self._store = store
        self._cache = cache
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
        """The best `k` chunks. Raises NoEmbedder if mode is vector and no vectors are available."""
        try:
            return await self._find(keys, query, k, mode, watch)
        except RedisError as error:
            raise TransientError(f"Redis is unavailable: {error}") from error

    async def _find(
        self, keys: RagKeys, query: str, k: int, mode: SearchMode, watch: OnLoadProgress | None
    ) -> SearchResult:
        # Embed first: an embedder may not know its name before its first vector.
        vector, embedded = await self._vector(query, mode), query
        found = SearchResult([], SearchMode.LEXICAL)
        for _ in range(_TRIES):
            index = await self._cache.open(keys, self._embedder.name, watch)
            if self._on_open is not None:
                self._on_open(index)
            synonyms = await index.synonyms(query)
            if vector is not None and embedded != expand_query(query, synonyms):
                embedded = expand_query(query, synonyms)
                again = await self._vector(embedded, mode)
                vector = vector if again is None else again
            request = _SearchRequest(
                query, synonyms, vector, max(MIN_CANDIDATES, _CANDIDATES_PER_HIT * k), mode
            )
            scored, done = await self._rank(index, request)
            found = SearchResult(await self._quote(index, scored[:k]), done)
            if len(found.hits) == len(scored[:k]):
                break  # else some have changed since they were indexed
        return found

    async def _vector(self, query: str, mode: SearchMode) -> Sequence[float] | None:
        """The vector of the query; None if it is not needed, or is optional and unavailable."""
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
            log.warning("could not embed the query, searching by words only: %s", error)
            return None
        return vector

    async def _rank(
        self, index: NamespaceIndex, request: _SearchRequest
    ) -> tuple[list[ScoredChunk], SearchMode]:
        vectors, vector = index.vectors, request.vector
        if request.mode is SearchMode.VECTOR:
            if vectors is None or vector is None:
                raise NoEmbedder(_NO_VECTORS)
            return await vectors.search(vector, request.depth), request.mode
        lexical = await index.search(request.query, request.depth, request.synonyms)
        if vector is None or not vectors:
            return lexical, SearchMode.LEXICAL
        return fuse_rankings(lexical, await vectors.search(vector, request.depth)), SearchMode.FUSED

    async def _quote(self, index: NamespaceIndex, scored: Sequence[ScoredChunk]) -> list[Hit]:
        """Read the text of the chunks from Redis; chunks that have changed are omitted."""
        known = [
            (each, indexed)
            for each, indexed in ((each, index.get(each.ref.document_id)) for each in scored)
            if indexed is not None and each.ref.chunk < len(indexed.offsets)
        ]
        spans = [
            indexed.offsets.byte_span(each.ref.document_id, each.ref.chunk)
            for each, indexed in known
        ]
        hits = []
        cut = await self._store.cut(index.keys, spans)
        for (each, indexed), span, (record, quote) in zip(known, spans, cut):
            start, end = indexed.offsets.span(each.ref.chunk)
            if record is None or record.revision != indexed.record.revision:
                continue
            if len(quote) == end - start:
                location = (start, end, quote, span.start, record.revision)
                hits.append(Hit(record.id, record.title, each.score, *location))
        return hits


def fuse_rankings(lexical: Sequence[ScoredChunk], near: Sequence[ScoredChunk]) -> list[ScoredChunk]:
    """Combine two rankings by the quality of each chunk in both.

    The lexical score is the fraction of the query that a chunk covers. The vector score is rescaled
    from the last chunk found (0) to an identical text (1), because absolute similarities differ
    between models. Ranks alone would not show how good a ranking is for a query.
    """
    scores = {each.ref: (1 - VECTOR_WEIGHT) * each.score for each in lexical}
    floor = min(near[-1].score, 0.99) if near else 0.0
    for each in near:
        above = (each.score - floor) / (1 - floor)
        scores[each.ref] = scores.get(each.ref, 0.0) + VECTOR_WEIGHT * above
    best = sorted(scores.items(), key=lambda item: -item[1])
    return [ScoredChunk(ref, score) for ref, score in best]
