"""What requests and answers about documents look like."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from common.codec import schema_pattern
from common.contracts.rag import DOCUMENT_ID_PATTERN, NAMESPACE_PATTERN

_SPANS = "Characters, from 0, the end not included."
_ID = "handbook.md"
#: As the worker takes it.
TITLE_CHARS = 200
EXAMPLE_DOCUMENT: dict[str, Any] = {
    "id": "handbook",
    "title": "Handbook",
    "text": "The office opens at nine.",
}


NamespaceName = Annotated[str, Field(pattern=schema_pattern(NAMESPACE_PATTERN))]
DocumentName = Annotated[str, Field(strict=True, pattern=schema_pattern(DOCUMENT_ID_PATTERN))]


class TextType(str, Enum):
    """What a document's text may be written in."""

    PLAIN = "text/plain"
    MARKDOWN = "text/markdown"
    HTML = "text/html"


class DocumentRequest(BaseModel):
    """A document to be found again."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE_DOCUMENT]})

    text: Annotated[str, Field(strict=True, min_length=1)] = Field(description="What it says.")
    id: DocumentName | None = Field(
        None,
        description="Its name; the same again replaces it. Default: made of what it says.",
        examples=[_ID],
    )
    title: Annotated[str, Field(strict=True, max_length=TITLE_CHARS)] | None = Field(
        None, description="For people. Default: its first heading."
    )
    media_type: TextType = Field(TextType.PLAIN, description="What the text is written in.")


class DocumentView(BaseModel):
    """A document as it is known; its text is at `/text` below it."""

    id: str = Field(examples=[_ID])
    title: str
    media_type: str = Field(examples=["text/markdown"])
    chars: int = Field(description="How long its text is.")
    chunks: int = Field(description="Of how many passages it is made.")
    sha256: str = Field(description="Of its text.")
    revision: str = Field(description="Changes with each ingest.")
    added_ts: int = Field(description="Unix milliseconds.", examples=[1760000000000])
    embedder: str = Field(description="The model behind its vectors; empty where it has none.")


class DocumentPage(BaseModel):
    """Documents of a namespace, the last changed first."""

    items: list[DocumentView]
    total: int = Field(description="All of them.")
    next: str | None = Field(
        description="Pass it as `before` for the next page; null on the last page.",
        examples=[None],
    )


class NamespaceList(BaseModel):
    """Namespaces that hold documents or terms."""

    items: list[str] = Field(examples=[["default"]])


class TermView(BaseModel):
    """A term, and what else it is called: who asks for one of the names finds all of them."""

    term: str = Field(examples=["dead letter queue"])
    aliases: list[str] = Field(examples=[["DLQ"]])
    kind: str = Field(description="Of the proposal it comes from.", examples=["term_alias"])
    workflow_job_id: str = Field(description="Where that was approved.")
    proposal_id: str = Field(examples=["p_001"])
    added_ms: int = Field(description="Unix milliseconds.", examples=[1760000000000])


class TermList(BaseModel):
    """Terms of a namespace, by name."""

    items: list[TermView]
    total: int = Field(description="All of them.")
    next: str | None = Field(
        description="Pass it as `after` for the next page; null on the last page.",
        examples=[None],
    )


class AddDocumentResponse(BaseModel):
    """The document can be found from now on."""

    job_id: str
    document_id: str = Field(examples=[_ID])
    chunks: int
    chars: int
    embedder: str
    replaced: bool = Field(description="Whether it took the place of an older one.")


class HitView(BaseModel):
    """A passage."""

    document_id: str = Field(examples=[_ID])
    title: str
    score: float
    start: int = Field(description=_SPANS)
    end: int
    quote: str = Field(description="The text from start to end.")


class CitationView(BaseModel):
    """A place in a document that an answer rests on."""

    document_id: str
    start: int
    end: int
    quote: str


class SearchView(BaseModel):
    """What was found, best first."""

    model_config = ConfigDict(extra="allow")

    job_id: str
    hits: list[HitView]
    citations: list[CitationView] = []
    text: str | None = Field(None, description="The answer, where one was asked for.")
    mode: str = Field(description="How the passages were found.", examples=["fused"])
