"""The task `rag`: takes documents in, deletes them, searches them, answers from them."""

from __future__ import annotations

from functools import partial
from typing import Any

from common.contracts.jobs import DataField, Task
from common.contracts.models import Channel, ModelStep
from common.contracts.rag import RagKeys, SearchMode
from worker.context import JobContext
from worker.embedding.types import Embedder
from worker.handlers.rag_payload import DeletePayload, IngestPayload, QueryPayload, RagPayload
from worker.model.results import result_of
from worker.model.rounds import Model
from worker.model.tokens import TokenStream
from worker.progress import tell_progress
from worker.rag.answering import answer
from worker.rag.library import Library
from worker.registry import Registry
from worker.unless_canceled import Stopped

_MS, _ATTEMPT = DataField.MS.value, DataField.ATTEMPT.value
_STEP = ModelStep.RAG


def register(
    registry: Registry, embedder: Embedder, model: Model | None, most_documents: int
) -> Library:
    """Let `registry` do the task; returns the documents, for others to search."""
    library = Library(embedder, most_documents)
    registry.add_service(library)
    add(registry, library, model)
    return library


def add(registry: Registry, library: Library, model: Model | None) -> None:
    """Let `registry` do the task with the documents of `library`."""

    async def rag(context: JobContext, payload: RagPayload) -> dict[str, Any] | None:
        asked = payload.root
        keys = library.keys(asked.ns, context.tenant)
        if isinstance(asked, IngestPayload):
            return await _ingest(library, context, keys, asked)
        if isinstance(asked, DeletePayload):
            outcome = await library.ingest.remove(context, keys, asked.document_id)
            return {**outcome, _MS: context.elapsed_ms}
        return await _query(library, model, context, keys, asked)

    registry.add(Task.RAG.value, rag)


async def _ingest(
    library: Library, context: JobContext, keys: RagKeys, asked: IngestPayload
) -> dict[str, Any] | None:
    document = asked.document
    try:
        outcome = await library.ingest.add(
            context,
            keys,
            None if asked.upload else document.text,
            upload_digest=asked.upload if isinstance(asked.upload, str) else "",
            document_id=document.id,
            title=document.title,
            media_type=document.media_type,
            progress=partial(tell_progress, context, _STEP),
        )
    except Stopped:
        return None
    return {**outcome, _MS: context.elapsed_ms}


async def _query(
    library: Library, model: Model | None, context: JobContext, keys: RagKeys, asked: QueryPayload
) -> dict[str, Any]:
    mode = SearchMode(asked.mode)
    found = await library.find(
        keys, asked.query, asked.top_k, mode, partial(tell_progress, context, _STEP)
    )
    result: dict[str, Any] = {
        "hits": [hit.view() for hit in found.hits],
        "citations": [],
        "mode": found.mode.value,
        _MS: context.elapsed_ms,
    }
    if not asked.answer or context.cancel_requested:
        return result
    async with TokenStream(context, _STEP) as tokens:
        answered = await answer(context, model, asked.query, found.hits, tokens)
        if answered.completion is not None:
            await tokens.usage(answered.completion)
    citations = [each.view() for each in await library.verified(keys, answered.citations)]
    for citation in citations:
        data = {**citation, _ATTEMPT: context.attempt}
        await context.emit(Channel.CITATION.value, data, step=_STEP.value)
    if answered.completion is not None:
        result.update(result_of(context, answered.completion))
    return {
        **result,
        "text": answered.text,
        "citations": citations,
        "answered_by": answered.answered_by,
        _MS: context.elapsed_ms,
    }
