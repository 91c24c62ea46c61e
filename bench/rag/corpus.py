"""Our own documents, taken apart, indexed and given vectors as a worker does it, without Redis."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from common.contracts.rag import SearchMode
from common.rag_store import DocumentRecord
from worker.embedding.types import Embedder
from worker.rag.chunking import chunks
from worker.rag.index import Index, Place, Scored, prepare
from worker.rag.ingest import embedded_texts
from worker.rag.numpy_vectors import NumpyVectors
from worker.rag.reading import TEXT_MARKDOWN, Reader, is_marked
from worker.rag.search import DEPTH, fused
from worker.rag.store import StoredText
from worker.rag.vectors import pack

ROOT: Final = Path(__file__).parents[2]
#: Pages that programs make: of measurements, this one's among them, or of the OpenAPI document.
MADE: Final = frozenset({"docs/api.md", "docs/benchmarks.md", "docs/rag.md"})


def documents() -> list[str]:
    """Names of all documents, relative to the project."""
    found = [ROOT / "README.md", ROOT / "contract.md", *sorted((ROOT / "docs").glob("*.md"))]
    names = [path.relative_to(ROOT).as_posix() for path in found]
    return [name for name in names if name not in MADE]


@dataclass
class Corpus:
    """A namespace that holds them."""

    embedder: Embedder
    index: Index = field(default_factory=Index)
    vectors: NumpyVectors = field(default_factory=NumpyVectors)
    passages: dict[Place, str] = field(default_factory=dict)
    characters: int = 0

    async def add(self, name: str, content: str) -> None:
        """Take a document in."""
        reading = await Reader().read(content, TEXT_MARKDOWN)
        text = reading.text
        spans = chunks(text, marked=is_marked(reading.media_type))
        record = DocumentRecord(
            name, reading.title, reading.media_type, len(text), len(spans), "", "1"
        )
        self.index.put(prepare(StoredText(record, text, spans)))
        made = await self.embedder.embed(embedded_texts(record, text, spans))
        await self.vectors.add(name, pack(made))
        self.characters += len(text)
        for number, span in enumerate(spans):
            self.passages[Place(name, number)] = text[span.start : span.end]

    async def search(self, query: str) -> dict[SearchMode, list[Place]]:
        """The best passages, by each way of searching."""
        worded = self.index.search(query, DEPTH)
        [vector] = await self.embedder.embed([query])
        near = [
            Scored(Place(each.document_id, each.chunk), each.score)
            for each in await self.vectors.search(vector, DEPTH)
        ]
        rankings = {
            SearchMode.LEXICAL: worded,
            SearchMode.VECTOR: near,
            SearchMode.FUSED: fused(worded, near),
        }
        return {mode: [each.place for each in found] for mode, found in rankings.items()}


async def build(embedder: Embedder) -> Corpus:
    """All documents."""
    corpus = Corpus(embedder)
    for name in documents():
        await corpus.add(name, (ROOT / name).read_text())
    return corpus
