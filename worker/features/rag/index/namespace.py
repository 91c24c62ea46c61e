"""The index of one namespace, in memory: where its chunks are and which words they hold."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from common.features.rag.documents import DocumentRecord
from worker.features.rag.index.bm25 import Bm25Index
from worker.features.rag.index.ontology import SynonymMatch, synonym_terms
from worker.features.rag.parsing import outline
from worker.features.rag.parsing.reader import has_markup
from worker.features.rag.store import ByteSpan, StoredText
from worker.features.rag.text.chunking import Span
from worker.features.rag.text.languages import ENGLISH, detect_language
from worker.features.rag.text.terms import query_terms, terms

#: Bytes that a document and a chunk take beside their words.
DOCUMENT_BYTES: Final = 1000
CHUNK_BYTES: Final = 40
#: Share of dead chunks at which the index is written anew.
MOST_WASTED: Final = 0.25
_FEWEST_WASTED: Final = 1000


class ChunkRef(NamedTuple):
    """A chunk: of which document, and the how manieth, from 0."""

    document_id: str
    chunk: int


class ScoredChunk(NamedTuple):
    """A chunk that was found."""

    ref: ChunkRef
    score: float


class ChunkOffsets:
    """Where the chunks of a document are, in characters and in bytes."""

    def __init__(self, text: str, spans: Sequence[Span]) -> None:
        bytes_at = _bytes_at(text, spans)
        self._numbers = array("I")
        for start, end in spans:
            self._numbers.extend((start, end, bytes_at[start], bytes_at[end]))

    def __len__(self) -> int:
        return len(self._numbers) // 4

    def span(self, chunk: int) -> Span:
        return Span(self._numbers[4 * chunk], self._numbers[4 * chunk + 1])

    def byte_span(self, document_id: str, chunk: int) -> ByteSpan:
        return ByteSpan(document_id, self._numbers[4 * chunk + 2], self._numbers[4 * chunk + 3])


@dataclass(frozen=True)
class PreparedDocument:
    """A document taken apart, ready for the index."""

    record: DocumentRecord
    offsets: ChunkOffsets
    language: str
    counts: Sequence[Counter[str]]


@dataclass
class IndexedDocument:
    """A document in the index."""

    record: DocumentRecord
    offsets: ChunkOffsets
    language: str
    #: Number of its first chunk among those of the namespace.
    first: int


def chunk_context(record: DocumentRecord, path: str) -> str:
    """What a chunk is about beside its own words: the title, and the headings above it."""
    return record.title if path in ("", record.title) else f"{record.title} > {path}"


def chunk_contexts(record: DocumentRecord, text: str, spans: Sequence[Span]) -> list[str]:
    """The same for every chunk of a document."""
    found = outline.headings(text, marked=has_markup(record.media_type))
    paths = outline.paths(found, [span.start for span in spans])
    return [chunk_context(record, path) for path in paths]


def prepare_document(stored: StoredText) -> PreparedDocument:
    """Count the words of a document. Takes long: not for the event loop."""
    record, text, chunks = stored
    spans = [span for span in chunks if 0 <= span.start < span.end <= len(text)]
    language = detect_language(text)
    counts = []
    known: dict[str, list[str]] = {}
    for span, context in zip(spans, chunk_contexts(record, text, spans)):
        if context not in known:
            known = {context: list(terms(context, language))}
        counted = Counter(known[context])
        counted.update(terms(text[span.start : span.end], language))
        counts.append(counted)
    return PreparedDocument(record, ChunkOffsets(text, spans), language, counts)


class ChunkIndex:
    """All chunks of a namespace. One thread at a time."""

    def __init__(self) -> None:
        self.documents: dict[str, IndexedDocument] = {}
        self._lexical = Bm25Index()
        #: Whose chunk a number is; None once that was taken away.
        self._owners: list[str | None] = []
        self._languages: Counter[str] = Counter()

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        fixed = DOCUMENT_BYTES * len(self.documents) + CHUNK_BYTES * len(self._owners)
        return fixed + self._lexical.size_bytes

    def put(self, prepared: PreparedDocument) -> None:
        """Add a document, in place of one of the same id."""
        document_id = prepared.record.id
        self.drop([document_id])
        first = len(self._owners)
        for counted in prepared.counts:
            self._lexical.add(counted)
        self._owners += [document_id] * len(prepared.counts)
        self._languages[prepared.language] += 1
        self.documents[document_id] = IndexedDocument(
            prepared.record, prepared.offsets, prepared.language, first
        )

    def drop(self, document_ids: Iterable[str]) -> None:
        for document_id in document_ids:
            indexed = self.documents.pop(document_id, None)
            if indexed is None:
                continue
            numbers = range(indexed.first, indexed.first + len(indexed.offsets))
            self._lexical.remove(numbers)
            for number in numbers:
                self._owners[number] = None
            self._languages[indexed.language] -= 1
        wasted = self._lexical.wasted
        if wasted > MOST_WASTED and wasted * len(self._owners) > _FEWEST_WASTED:
            self._compact()

    @property
    def languages(self) -> frozenset[str]:
        found = frozenset(each for each, count in self._languages.items() if count > 0)
        return found or frozenset({ENGLISH})

    def search(
        self, query: str, most: int, renamed: Sequence[SynonymMatch] = ()
    ) -> list[ScoredChunk]:
        """The best chunks by their words. Takes long: not for the event loop.

        Scores are the share of the query that a chunk covers, by weight: from 0 to 1.
        """
        languages = self.languages
        words = query_terms(query, languages)
        names = synonym_terms(words, renamed, languages) if renamed else None
        found = self._lexical.shares(words, most, names)
        scored = []
        for number, score in found:
            owner = self._owners[number]
            if owner is not None:
                place = ChunkRef(owner, number - self.documents[owner].first)
                scored.append(ScoredChunk(place, score))
        return scored

    def _compact(self) -> None:
        renumbered = self._lexical.compact()
        self._owners = [owner for owner in self._owners if owner is not None]
        for indexed in self.documents.values():
            if len(indexed.offsets):
                indexed.first = renumbered[indexed.first]


def _bytes_at(text: str, spans: Sequence[Span]) -> dict[int, int]:
    """How many bytes of UTF-8 come before each end of a span."""
    places = sorted({place for span in spans for place in span})
    if text.isascii():
        return {place: place for place in places}
    found: dict[int, int] = {}
    before = total = 0
    for place in places:
        total += len(text[before:place].encode())
        found[place], before = total, place
    return found
