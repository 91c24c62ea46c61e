"""The documentation, chunked, indexed and embedded as a worker does it, without Redis."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sluice.common.contracts.rag import SearchMode
from sluice.common.features.rag.documents import DocumentRecord
from sluice.worker.features.embedding.types import Embedder
from sluice.worker.features.rag.index.namespace import (
    ChunkIndex,
    ChunkRef,
    ScoredChunk,
    prepare_document,
)
from sluice.worker.features.rag.ingest import texts_to_embed
from sluice.worker.features.rag.parsing.reader import TEXT_MARKDOWN, DocumentReader, has_markup
from sluice.worker.features.rag.search import MIN_CANDIDATES, fuse_rankings
from sluice.worker.features.rag.store import StoredText
from sluice.worker.features.rag.text.chunking import split_chunks
from sluice.worker.features.rag.vectors.base import pack_vectors
from sluice.worker.features.rag.vectors.memory import NumpyVectorIndex

ROOT: Final = Path(__file__).parents[2]
#: Generated pages: of measurements, including this one, or of the OpenAPI document.
GENERATED: Final = frozenset({"docs/api.md", "docs/benchmarks.md", "docs/rag.md"})


def documents() -> list[str]:
    """Names of all documents, relative to the project."""
    found = [ROOT / "README.md", ROOT / "contract.md", *sorted((ROOT / "docs").glob("*.md"))]
    names = [path.relative_to(ROOT).as_posix() for path in found]
    return [name for name in names if name not in GENERATED]


@dataclass
class Corpus:
    """A namespace with all documents."""

    embedder: Embedder
    index: ChunkIndex = field(default_factory=ChunkIndex)
    vectors: NumpyVectorIndex = field(default_factory=NumpyVectorIndex)
    passages: dict[ChunkRef, str] = field(default_factory=dict)
    characters: int = 0

    async def add(self, name: str, content: str) -> None:
        reading = await DocumentReader().read(content, TEXT_MARKDOWN)
        text = reading.text
        spans = split_chunks(text, marked=has_markup(reading.media_type))
        record = DocumentRecord(
            name, reading.title, reading.media_type, len(text), len(spans), "", "1"
        )
        self.index.put(prepare_document(StoredText(record, text, spans)))
        vectors = await self.embedder.embed(texts_to_embed(record, text, spans))
        await self.vectors.add(name, pack_vectors(vectors))
        self.characters += len(text)
        for number, span in enumerate(spans):
            self.passages[ChunkRef(name, number)] = text[span.start : span.end]

    async def search(self, query: str) -> dict[SearchMode, list[ChunkRef]]:
        """The best passages by search mode."""
        lexical = self.index.search(query, MIN_CANDIDATES)
        [vector] = await self.embedder.embed([query])
        similar = [
            ScoredChunk(ChunkRef(each.document_id, each.chunk), each.score)
            for each in await self.vectors.search(vector, MIN_CANDIDATES)
        ]
        rankings = {
            SearchMode.LEXICAL: lexical,
            SearchMode.VECTOR: similar,
            SearchMode.FUSED: fuse_rankings(lexical, similar),
        }
        return {mode: [each.ref for each in found] for mode, found in rankings.items()}


async def build(embedder: Embedder) -> Corpus:
    """Indexes all documents."""
    corpus = Corpus(embedder)
    for name in documents():
        await corpus.add(name, (ROOT / name).read_text())
    return corpus
