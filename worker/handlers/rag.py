"""The task `rag`: ingests, deletes and searches documents, and answers from them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, RootModel, Tag, model_validator

from sluice.common.codec import schema_pattern
from sluice.common.contracts.jobs import DataField, Task
from sluice.common.contracts.models import HandlerEventType, ModelStep
from sluice.common.contracts.rag import (
    DEFAULT_NAMESPACE,
    DOCUMENT_ID_PATTERN,
    NAMESPACE_PATTERN,
    RagKeys,
    RagOperation,
    SearchMode,
)
from sluice.worker.execution.concurrency import JobCanceled
from sluice.worker.execution.context import JobContext, emit_progress
from sluice.worker.features.model.output_parsing import ChatModel
from sluice.worker.features.model.token_events import TokenStream, completion_result
from sluice.worker.features.rag.answering import answer_query
from sluice.worker.features.rag.service import RagService
from sluice.worker.handlers.prompt import one_prompt, prompt_field
from sluice.worker.registry import Registry

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings
    from sluice.worker.features.shared import SharedServices

MOST_HITS = 50
QUERY_CHARS = 4000
TITLE_CHARS = 200

_OP = "op"


Namespace = Annotated[str, Field(pattern=schema_pattern(NAMESPACE_PATTERN), max_length=63)]
DocumentId = Annotated[str, Field(pattern=schema_pattern(DOCUMENT_ID_PATTERN), max_length=128)]


class _StrictPayload(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class QueryPayload(_StrictPayload):
    """A search, and whether to answer the query from its hits."""

    op: Literal["query"] = RagOperation.QUERY
    query: str = prompt_field("query", min_length=1, max_length=QUERY_CHARS)
    ns: Namespace = DEFAULT_NAMESPACE
    top_k: int = Field(5, ge=1, le=MOST_HITS)
    answer: bool = False
    mode: Literal["auto", "lexical", "vector"] = SearchMode.AUTO.value

    _one_prompt = one_prompt("query")


class DocumentPayload(_StrictPayload):
    """A document to ingest."""

    id: DocumentId | Literal[""] = ""
    title: str = Field("", max_length=TITLE_CHARS)
    text: str | None = None
    media_type: str = Field("", max_length=200)


class IngestPayload(_StrictPayload):
    """Ingest a document: its text, or the upload of the job (with its SHA-256)."""

    op: Literal["ingest"]
    ns: Namespace = DEFAULT_NAMESPACE
    document: DocumentPayload = DocumentPayload()
    upload: bool | Annotated[str, Field(pattern="^[0-9a-f]{64}$")] = False

    @model_validator(mode="after")
    def _one_source(self) -> IngestPayload:
        if bool(self.upload) == (self.document.text is not None):
            raise ValueError("give either `document.text` or `upload`, not both")
        return self


class DeletePayload(_StrictPayload):
    """Delete a document."""

    op: Literal["delete"]
    ns: Namespace = DEFAULT_NAMESPACE
    document_id: DocumentId


def _operation(payload: Any) -> Any:
    return payload.get(_OP, RagOperation.QUERY) if isinstance(payload, dict) else payload.op


class RagPayload(RootModel[Any]):
    """Any of the three operations, by `op`; a query if it is missing."""

    root: Annotated[
        Annotated[QueryPayload, Tag(RagOperation.QUERY)]
        | Annotated[IngestPayload, Tag(RagOperation.INGEST)]
        | Annotated[DeletePayload, Tag(RagOperation.DELETE)],
        Discriminator(_operation),
    ]


_MS, _ATTEMPT = DataField.MS, DataField.ATTEMPT
_STEP = ModelStep.RAG


def register(registry: Registry, settings: WorkerSettings, shared: SharedServices) -> None:
    add_handler(registry, shared.rag, shared.model)


def add_handler(registry: Registry, rag_service: RagService, model: ChatModel | None) -> None:
    """Register the task `rag`."""

    async def rag(context: JobContext, payload: RagPayload) -> dict[str, Any] | None:
        request = payload.root
        keys = rag_service.keys(request.ns, context.tenant)
        if isinstance(request, IngestPayload):
            return await _ingest(rag_service, context, keys, request)
        if isinstance(request, DeletePayload):
            outcome = await rag_service.ingest.remove(context, keys, request.document_id)
            return {**outcome, _MS: context.elapsed_ms}
        return await _query(rag_service, model, context, keys, request)

    registry.add(Task.RAG.value, rag)


async def _ingest(
    rag_service: RagService, context: JobContext, keys: RagKeys, request: IngestPayload
) -> dict[str, Any] | None:
    document = request.document
    try:
        outcome = await rag_service.ingest.add(
            context,
            keys,
            None if request.upload else document.text,
            upload_digest=request.upload if isinstance(request.upload, str) else "",
            document_id=document.id,
            title=document.title,
            media_type=document.media_type,
            progress=partial(emit_progress, context, _STEP),
        )
    except JobCanceled:
        return None
    return {**outcome, _MS: context.elapsed_ms}


async def _query(
    rag_service: RagService,
    model: ChatModel | None,
    context: JobContext,
    keys: RagKeys,
    request: QueryPayload,
) -> dict[str, Any]:
    mode = SearchMode(request.mode)
    found = await rag_service.find(
        keys, request.query, request.top_k, mode, partial(emit_progress, context, _STEP)
    )
    result: dict[str, Any] = {
        "hits": [hit.view() for hit in found.hits],
        "citations": [],
        "mode": found.mode.value,
        _MS: context.elapsed_ms,
    }
    if not request.answer or context.cancel_requested:
        return result
    async with TokenStream(context, _STEP) as tokens:
        answered = await answer_query(context, model, request.query, found.hits, tokens)
        if answered.completion is not None:
            await tokens.usage(answered.completion)
    citations = [
        each.view() for each in await rag_service.verify_citations(keys, answered.citations)
    ]
    for citation in citations:
        data = {**citation, _ATTEMPT: context.attempt}
        await context.emit(HandlerEventType.CITATION, data, step=_STEP)
    if answered.completion is not None:
        result.update(completion_result(context, answered.completion))
    return {
        **result,
        "text": answered.text,
        "citations": citations,
        "answered_by": answered.answered_by,
        _MS: context.elapsed_ms,
    }
