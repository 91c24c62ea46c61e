"""In-memory index of one namespace: positions and words of its chunks."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sluice.common.features.rag.documents import DocumentRecord
from sluice.worker.features.rag.index.bm25 import Bm25Index
from sluice.worker.features.rag.index.ontology import SynonymMatch, synonym_terms
from sluice.worker.features.rag.parsing import outline
from sluice.worker.features.rag.parsing.reader import has_markup
from sluice.worker.features.rag.store import ByteSpan, StoredText
from sluice.worker.features.rag.text.chunking import Span
from sluice.worker.features.rag.text.languages import ENGLISH, detect_language
from sluice.worker.features.rag.text.terms import query_terms, terms

#: Estimated memory of a document and of a chunk, without their words.
DOCUMENT_BYTES: Final = 1000
CHUNK_BYTES: Final = 40
#: Fraction of removed chunks at which the index is compacted.
MOST_WASTED: Final = 0.25
_FEWEST_WASTED: Final = 1000


class ChunkRef(NamedTuple):
    """A chunk: its document and its number within it, from 0."""

    document_id: str
    chunk: int


class ScoredChunk(NamedTuple):
    """A chunk with its score."""

    ref: ChunkRef
    score: float


class ChunkOffsets:
    """Positions of a document's chunks, in characters and in bytes."""

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
    """A tokenized document, ready to be indexed."""

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
    #: Number of its first chunk within the namespace.
    first: int


def chunk_context(record: DocumentRecord, path: str) -> str:
    """Context of a chunk: the title, and the headings above it."""
    return record.title if path in ("", record.title) else f"{record.title} > {path}"


def chunk_contexts(record: DocumentRecord, text: str, spans: Sequence[Span]) -> list[str]:
    """The context of every chunk of a document."""
    found = outline.headings(text, marked=has_markup(record.media_type))
    paths = outline.paths(found, [span.start for span in spans])
    return [chunk_context(record, path) for path in paths]


def prepare_document(stored: StoredText) -> PreparedDocument:
    """Tokenize a document and count its terms. Slow: not for the event loop."""
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
    """All chunks of a namespace. Not thread-safe."""

    def __init__(self) -> None:
        self.documents: dict[str, IndexedDocument] = {}
        self._lexical = Bm25Index()
        #: Document of each chunk number; None once removed.
        self._owners: list[str | None] = []
        self._languages: Counter[str] = Counter()

    @property
    def size_bytes(self) -> int:
        """Estimated memory."""
        fixed = DOCUMENT_BYTES * len(self.documents) + CHUNK_BYTES * len(self._owners)
        return fixed + self._lexical.size_bytes

    def put(self, prepared: PreparedDocument) -> None:
        """Add a document, replacing one with the same id."""
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
        """The best chunks by words. Slow: not for the event loop.

        Scores are the weighted fraction of the query that a chunk covers, from 0 to 1.
        """
        languages = self.languages
        words = query_terms(query, languages)
        names = synonym_terms(words, renamed, languages) if renamed else None
        found = self._lexical.shares(words, most, names)
        scored = []
        for number, score in found:
            owner = self._owners[number]
            if owner is not None:
                ref = ChunkRef(owner, number - self.documents[owner].first)
                scored.append(ScoredChunk(ref, score))
        return scored

    def _compact(self) -> None:
        renumbered = self._lexical.compact()
        self._owners = [owner for owner in self._owners if owner is not None]
        for indexed in self.documents.values():
            if len(indexed.offsets):
                indexed.first = renumbered[indexed.first]


def _bytes_at(text: str, spans: Sequence[Span]) -> dict[int, int]:
    """Number of UTF-8 bytes before the start and end of each span."""
    positions = sorted({position for span in spans for position in span})
    if text.isascii():
        return {position: position for position in positions}
    found: dict[int, int] = {}
    before = total = 0
    for position in positions:
        total += len(text[before:position].encode())
        found[position], before = total, position
    return found
