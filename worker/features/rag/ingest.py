"""Ingests documents: parse, split into chunks, embed, and store atomically."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sluice.common.contracts.queue import Answer
from sluice.common.contracts.rag import RagKeys
from sluice.common.features.rag.documents import DocumentRecord
from sluice.worker.errors import JobError, TransientError
from sluice.worker.execution.concurrency import JobCanceled, call_in_thread, run_until_canceled
from sluice.worker.execution.context import JobContext
from sluice.worker.features.embedding.types import Embedder
from sluice.worker.features.rag.errors import UploadGone
from sluice.worker.features.rag.index.cache import NamespaceCache
from sluice.worker.features.rag.index.namespace import chunk_contexts
from sluice.worker.features.rag.parsing.reader import DocumentReader, ParsedDocument, has_markup
from sluice.worker.features.rag.store import (
    STORED_STEP,
    NewDocument,
    RagStore,
    WriteGuard,
    text_digest,
)
from sluice.worker.features.rag.text.chunking import Span, split_chunks
from sluice.worker.features.rag.vectors.base import PackedVectors, pack_vectors

log = logging.getLogger(__name__)

#: Hexadecimal digits of a generated document id, and of a revision.
ID_DIGITS: Final = 32
REVISION_DIGITS: Final = 16

#: Markup that is stripped: rules of tables; bars, backticks and stars; link targets; repeated
#: blanks.
_MARKS: Final = tuple(
    re.compile(marks, re.MULTILINE)
    for marks in (
        r"^[ \t|:-]+$",
        r"[`*|]+",
        r"\[(?=[^\]\n]{0,500}\]\()|\]\([^)\s]{0,2000}\)",
        r"[ \t]{2,}",
    )
)

#: Called with the numbers of chunks embedded and in total.
OnEmbedProgress = Callable[[int, int], Awaitable[None]]


def texts_to_embed(record: DocumentRecord, text: str, spans: list[Span]) -> list[str]:
    """The texts to embed: each chunk, headed by its context."""
    heads = chunk_contexts(record, text, spans)
    texts = (f"{head}\n{text[span.start : span.end]}" for head, span in zip(heads, spans))
    marked = has_markup(record.media_type)
    return [_strip_markup(each) if marked else each for each in texts]


def _strip_markup(text: str) -> str:
    """Remove the markup of tables, code, emphasis and links, to use the model's token limit for
    words.
    """
    for marks in _MARKS:
        text = marks.sub(" ", text)
    return text


class Ingest:
    """Adds documents to namespaces and removes them; retries of a job do not repeat the change."""

    def __init__(
        self,
        store: RagStore,
        cache: NamespaceCache,
        embedder: Embedder,
        reader: DocumentReader | None = None,
    ) -> None:
        self._store = store
        self._cache = cache
        self._embedder = embedder
        self._reader = reader or DocumentReader()

    async def add(
        self,
        context: JobContext,
        keys: RagKeys,
        content: str | None,
        *,
        upload_digest: str = "",
        document_id: str = "",
        title: str = "",
        media_type: str = "",
        progress: OnEmbedProgress | None = None,
    ) -> dict[str, Any]:
        """Store a document, or the upload of the job; returns the outcome.

        Raises JobCanceled if the job is canceled before the document is stored.
        """
        done = (await context.saved()).get(STORED_STEP)
        if done is not None:  # an earlier attempt has stored it
            return dict(done)
        try:
            if content is None:
                body = await self._load_upload(context, keys, upload_digest)
                parsed = await self._read(context, body, media_type, title)
            else:
                parsed = await self._read(context, content, media_type, title)
            return await self._store_document(context, keys, parsed, document_id, progress)
        except (JobError, JobCanceled) as error:
            if content is None and not isinstance(error, TransientError):  # the job ends here
                await self._store.drop_upload(keys, context.job_id)
            raise

    async def _store_document(
        self,
        context: JobContext,
        keys: RagKeys,
        parsed: ParsedDocument,
        document_id: str,
        progress: OnEmbedProgress | None,
    ) -> dict[str, Any]:
        revision = hashlib.sha256(context.job_id.encode()).hexdigest()[:REVISION_DIGITS]
        document, packed = await self._prepare(context, parsed, document_id, revision, progress)
        before = await self._store.records(keys, [document.record.id])
        outcome = await self._store.commit(context.fence, context.job_id, keys, document)
        await self._cache.changed(keys, before, document.record, packed)
        return outcome

    async def add_new(
        self,
        context: JobContext,
        keys: RagKeys,
        parsed: ParsedDocument,
        guard: WriteGuard,
        revision: str,
    ) -> Answer:
        """Store a parsed document unless one with its id exists; a job may add many.

        Returns OK, CONFLICT if the id exists, or GONE if the guard no longer holds.
        """
        document, packed = await self._prepare(context, parsed, "", revision, None)
        answer = await self._store.add(context.fence, context.job_id, keys, document, guard)
        if answer is Answer.OK:
            await self._cache.changed(keys, (), document.record, packed)
        return answer

    async def _prepare(
        self,
        context: JobContext,
        parsed: ParsedDocument,
        document_id: str,
        revision: str,
        progress: OnEmbedProgress | None,
    ) -> tuple[NewDocument, PackedVectors]:
        digest = await call_in_thread(text_digest, parsed.text)
        spans: list[Span] = await call_in_thread(_split, parsed)
        record = DocumentRecord(
            id=document_id or digest[:ID_DIGITS],
            title=parsed.title,
            media_type=parsed.media_type,
            chars=len(parsed.text),
            chunks=len(spans),
            sha256=digest,
            revision=revision,
        )
        embedder, packed = await self._vectors(context, record, parsed.text, spans, progress)
        record = record.with_embedder(embedder)
        return NewDocument(record, parsed.text, spans, packed.data), packed

    async def remove(self, context: JobContext, keys: RagKeys, document_id: str) -> dict[str, Any]:
        """Delete a document; returns the outcome."""
        before = await self._store.records(keys, [document_id])
        outcome = await self._store.remove(context.fence, keys, document_id)
        await self._cache.changed(keys, before)
        return outcome

    async def _read(
        self, context: JobContext, body: str | bytes, media_type: str, title: str
    ) -> ParsedDocument:
        parsed: ParsedDocument = await run_until_canceled(
            context, self._reader.read(body, media_type, title)
        )
        return parsed

    async def _load_upload(self, context: JobContext, keys: RagKeys, digest: str) -> bytes:
        body = await self._store.upload(keys, context.job_id)
        if body is None or (digest and digest != hashlib.sha256(body).hexdigest()):
            raise UploadGone("the uploaded document is gone or was replaced; upload it again")
        return body

    async def _vectors(
        self,
        context: JobContext,
        record: DocumentRecord,
        text: str,
        spans: list[Span],
        progress: OnEmbedProgress | None,
    ) -> tuple[str, PackedVectors]:
        """Returns (embedder name, vectors); ('', empty) if embedding is unavailable."""

        async def on_done(done: int) -> None:
            if progress is not None:
                await progress(done, len(spans))

        if not self._embedder.ready:
            return "", PackedVectors(b"", 0)
        texts = await call_in_thread(texts_to_embed, record, text, spans)
        try:
            result = await run_until_canceled(
                context, self._embedder.embed_all(texts, on_done=on_done)
            )
            packed: PackedVectors = await call_in_thread(pack_vectors, result.vectors)
        except JobCanceled:
            raise
        except Exception as error:  # it is found by words until the backfill adds vectors
            log.warning("document %s: stored without vectors: %s", record.id, error)
            return "", PackedVectors(b"", 0)
        return self._embedder.name, packed


def _split(parsed: ParsedDocument) -> list[Span]:
    return split_chunks(parsed.text, marked=has_markup(parsed.media_type))
