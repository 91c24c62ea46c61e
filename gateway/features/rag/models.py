"""Request and response models of `/v1/rag`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from sluice.common.codec import schema_pattern
from sluice.common.contracts.rag import DOCUMENT_ID_PATTERN, NAMESPACE_PATTERN

_SPANS = "Character offset, from 0; the end is exclusive."
_ID = "handbook.md"
#: The limit of the worker.
TITLE_CHARS = 200
EXAMPLE_DOCUMENT: dict[str, Any] = {
    "id": "handbook",
    "title": "Handbook",
    "text": "The office opens at nine.",
}


NamespaceName = Annotated[str, Field(pattern=schema_pattern(NAMESPACE_PATTERN))]
DocumentName = Annotated[str, Field(strict=True, pattern=schema_pattern(DOCUMENT_ID_PATTERN))]


class TextType(str, Enum):
    """Media types of a document's text."""

    PLAIN = "text/plain"
    MARKDOWN = "text/markdown"
    HTML = "text/html"


class DocumentRequest(BaseModel):
    """A document to add."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE_DOCUMENT]})

    text: Annotated[str, Field(strict=True, min_length=1)] = Field(description="The text.")
    id: DocumentName | None = Field(
        None,
        description="The document's id; a document with the same id is replaced. Default: derived "
        "from the text.",
        examples=[_ID],
    )
    title: Annotated[str, Field(strict=True, max_length=TITLE_CHARS)] | None = Field(
        None, description="Title. Default: the first heading."
    )
    media_type: TextType = Field(TextType.PLAIN, description="Media type of the text.")


class DocumentView(BaseModel):
    """Metadata of a document; its text is at `…/text`."""

    id: str = Field(examples=[_ID])
    title: str
    media_type: str = Field(examples=["text/markdown"])
    chars: int = Field(description="Length of the text in characters.")
    chunks: int = Field(description="Number of passages.")
    sha256: str = Field(description="SHA-256 of the text.")
    revision: str = Field(description="Changes with each ingest.")
    added_ts: int = Field(description="Unix milliseconds.", examples=[1760000000000])
    embedder: str = Field(description="The embedding model of its vectors; empty if it has none.")


class DocumentPage(BaseModel):
    """A page of documents, last changed first."""

    items: list[DocumentView]
    total: int = Field(description="Number of all entries.")
    next: str | None = Field(
        description="Pass it as `before` for the next page; null on the last page.",
        examples=[None],
    )


class NamespaceList(BaseModel):
    """Namespaces with documents or terms."""

    items: list[str] = Field(examples=[["default"]])


class TermView(BaseModel):
    """A term and its aliases: a search for one of the names finds all of them."""

    term: str = Field(examples=["dead letter queue"])
    aliases: list[str] = Field(examples=[["DLQ"]])
    kind: str = Field(description="Kind of the proposal it comes from.", examples=["term_alias"])
    workflow_job_id: str = Field(description="The workflow job that approved it.")
    proposal_id: str = Field(examples=["p_001"])
    added_ms: int = Field(description="Unix milliseconds.", examples=[1760000000000])


class TermList(BaseModel):
    """A page of terms, by name."""

    items: list[TermView]
    total: int = Field(description="Number of all entries.")
    next: str | None = Field(
        description="Pass it as `after` for the next page; null on the last page.",
        examples=[None],
    )


class AddDocumentResponse(BaseModel):
    """The job that adds the document, and what it added if the request waited for its end."""

    job_id: str
    document_id: str | None = Field(None, examples=[_ID])
    chunks: int | None = None
    chars: int | None = None
    embedder: str | None = None
    replaced: bool | None = Field(None, description="Whether it replaced an older one.")


class HitView(BaseModel):
    """A passage."""

    document_id: str = Field(examples=[_ID])
    title: str
    score: float
    start: int = Field(description=_SPANS)
    end: int
    quote: str = Field(description="The text from start to end.")


class CitationView(BaseModel):
    """A passage that the answer is based on."""

    document_id: str
    start: int
    end: int
    quote: str


class SearchView(BaseModel):
    """Search results, best first."""

    model_config = ConfigDict(extra="allow")

    job_id: str
    hits: list[HitView]
    citations: list[CitationView] = []
    text: str | None = Field(None, description="The answer, if requested.")
    mode: str = Field(description="The search mode that was used.", examples=["fused"])
