"""What the task `rag` takes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, RootModel, Tag, model_validator

from common.contracts.rag import DEFAULT_NAMESPACE, DOCUMENT_ID, NAMESPACE, RagOperation, SearchMode
from common.patterns import in_schema

MOST_HITS = 50
QUERY_CHARS = 4000
TITLE_CHARS = 200

_OP = "op"


Namespace = Annotated[str, Field(pattern=in_schema(NAMESPACE), max_length=63)]
DocumentId = Annotated[str, Field(pattern=in_schema(DOCUMENT_ID), max_length=128)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class QueryPayload(_Strict):
    """A question: what to look for, and whether to answer it."""

    op: Literal["query"] = RagOperation.QUERY.value
    query: str = Field(min_length=1, max_length=QUERY_CHARS)
    ns: Namespace = DEFAULT_NAMESPACE
    top_k: int = Field(5, ge=1, le=MOST_HITS)
    answer: bool = False
    mode: Literal["auto", "lexical", "vector"] = SearchMode.AUTO.value


class DocumentPayload(_Strict):
    """A document to take in."""

    id: DocumentId | Literal[""] = ""
    title: str = Field("", max_length=TITLE_CHARS)
    text: str | None = None
    media_type: str = Field("", max_length=200)


class IngestPayload(_Strict):
    """Take a document in: its text, or what was uploaded with the job (and its SHA-256)."""

    op: Literal["ingest"]
    ns: Namespace = DEFAULT_NAMESPACE
    document: DocumentPayload = DocumentPayload()
    upload: bool | Annotated[str, Field(pattern="^[0-9a-f]{64}$")] = False

    @model_validator(mode="after")
    def _one_source(self) -> IngestPayload:
        if bool(self.upload) == (self.document.text is not None):
            raise ValueError("give either `document.text` or `upload`, and not both")
        return self


class DeletePayload(_Strict):
    """Delete a document."""

    op: Literal["delete"]
    ns: Namespace = DEFAULT_NAMESPACE
    document_id: DocumentId


def _operation(payload: Any) -> Any:
    return payload.get(_OP, RagOperation.QUERY.value) if isinstance(payload, dict) else payload.op


class RagPayload(RootModel[Any]):
    """Any of the three, told apart by `op`; a query where it names none."""

    root: Annotated[
        Annotated[QueryPayload, Tag(RagOperation.QUERY.value)]
        | Annotated[IngestPayload, Tag(RagOperation.INGEST.value)]
        | Annotated[DeletePayload, Tag(RagOperation.DELETE.value)],
        Discriminator(_operation),
    ]
