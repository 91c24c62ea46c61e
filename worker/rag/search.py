"""Finds chunks by words, by nearness, or by both; for jobs, for tools, for whoever asks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from redis.exceptions import RedisError

from common.contracts.rag import RagKeys, SearchMode
from worker.embedding.types import Embedder, NoEmbedder
from worker.errors import TransientError
from worker.rag.index import Scored
from worker.rag.ontology import Renamed, in_other_words
from worker.rag.shelf import Shelf
from worker.rag.shelves import Shelves, Watch
from worker.rag.store import RagStore

log = logging.getLogger(__name__)

#: How much nearness counts beside words, where there is both.
NEARNESS: Final = 0.4
#: Each way brings so many candidates, or several times what is asked for.
DEPTH: Final = 50
_DEPTH_PER_HIT: Final = 4
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
        """As results show it."""
        return {
            "document_id": self.document_id,
            "title": self.title,
            "score": round(self.score, 6),
            "start": self.start,
            "end": self.end,
            "quote": self.quote,
        }


class Found(NamedTuple):
    """The hits, best first, and how they were found: lexical, vector or fused."""

    hits: list[Hit]
    mode: SearchMode


class _Asked(NamedTuple):
    """A query, what it is called here beside, its vector, and how much is wanted in which way."""

    query: str
    renamed: Sequence[Renamed]
    vector: Sequence[float] | None
    depth: int
    mode: SearchMode


class Searcher:
    """Searches namespaces, each on its own. `opened` is told which ones were."""

    def __init__(
        self,
        store: RagStore,
        shelves: Shelves,
        embedder: Embedder,
        opened: Callable[[Shelf], None] | None = None,
    ) -> None:
        self._store = store
        self._shelves = shelves
        self._embedder = embedder
        self._opened = opened

    async def find(
        self,
        keys: RagKeys,
        query: str,
        k: int,
        mode: SearchMode = SearchMode.AUTO,
        watch: Watch | None = None,
    ) -> Found:
        """The best `k` chunks. What is asked for by vector and cannot be raises NoEmbedder."""
        try:
            return await self._find(keys, query, k, mode, watch)
        except RedisError as error:
            raise TransientError(f"Redis is away: {error}") from error

    async def _find(
        self, keys: RagKeys, query: str, k: int, mode: SearchMode, watch: Watch | None
    ) -> Found:
        # First of all: an embedder may not know its name before it has made a vector.
        vector, embedded = await self._vector(query, mode), query
        found = Found([], SearchMode.LEXICAL)
        for _ in range(_TRIES):
            shelf = await self._shelves.open(keys, self._embedder.name, watch)
            if self._opened is not None:
                self._opened(shelf)
            renamed = await shelf.renamed(query)
            if vector is not None and embedded != in_other_words(query, renamed):
                embedded = in_other_words(query, renamed)
                again = await self._vector(embedded, mode)
                vector = vector if again is None else again
            asked = _Asked(query, renamed, vector, max(DEPTH, _DEPTH_PER_HIT * k), mode)
            scored, done = await self._rank(shelf, asked)
            found = Found(await self._quote(shelf, scored[:k]), done)
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

    async def _rank(self, shelf: Shelf, asked: _Asked) -> tuple[list[Scored], SearchMode]:
        nearness, vector = shelf.nearness, asked.vector
        if asked.mode is SearchMode.VECTOR:
            if nearness is None or vector is None:
                raise NoEmbedder(_NO_VECTORS)
            return await nearness.search(vector, asked.depth), asked.mode
        worded = await shelf.search(asked.query, asked.depth, asked.renamed)
        if vector is None or not nearness:
            return worded, SearchMode.LEXICAL
        return fused(worded, await nearness.search(vector, asked.depth)), SearchMode.FUSED

    async def _quote(self, shelf: Shelf, scored: Sequence[Scored]) -> list[Hit]:
        """What the chunks say, read from Redis; those that have changed meanwhile are left out."""
        known = [
            (each, indexed)
            for each, indexed in ((each, shelf.get(each.place.document_id)) for each in scored)
            if indexed is not None and each.place.chunk < len(indexed.offsets)
        ]
        spans = [
            indexed.offsets.byte_span(each.place.document_id, each.place.chunk)
            for each, indexed in known
        ]
        hits = []
        cut = await self._store.cut(shelf.keys, spans)
        for (each, indexed), span, (record, quote) in zip(known, spans, cut):
            start, end = indexed.offsets.span(each.place.chunk)
            if record is None or record.revision != indexed.record.revision:
                continue
            if len(quote) == end - start:
                place = (start, end, quote, span.start, record.revision)
                hits.append(Hit(record.id, record.title, each.score, *place))
        return hits


def fused(worded: Sequence[Scored], near: Sequence[Scored]) -> list[Scored]:
    """Two rankings as one, by how good a chunk is in each.

    By words that is the share of the query it covers. By vectors it is how far it stands out: from
    the last one that was found, at 0, to one that says the same, at 1. What is called near differs
    from model to model, and so does a ranking's worth from query to query, which ranks alone do
    not tell.
    """
    scores = {each.place: (1 - NEARNESS) * each.score for each in worded}
    floor = min(near[-1].score, 0.99) if near else 0.0
    for each in near:
        above = (each.score - floor) / (1 - floor)
        scores[each.place] = scores.get(each.place, 0.0) + NEARNESS * above
    best = sorted(scores.items(), key=lambda item: -item[1])
    return [Scored(place, score) for place, score in best]
