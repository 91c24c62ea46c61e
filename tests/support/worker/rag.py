"""Workers for `rag` jobs, with a predictable embedder and model."""

from __future__ import annotations

import asyncio
import json
import math
import re
import uuid
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from sluice.common.aio import cancel
from sluice.common.contracts.rag import RagKeys, SearchMode
from sluice.common.features.rag.documents import DocumentRecord, RagReader
from sluice.common.jobs.options import JobOptions
from sluice.worker.execution.context import JobContext
from sluice.worker.features.embedding.types import EmbeddingResult, NoEmbedder, OnDone
from sluice.worker.features.model.types import CANCELED, ChatRequest, Completion, Sink, Usage
from sluice.worker.features.rag.service import RagService
from sluice.worker.registry import Registry
from tests.support.worker.harness import WorkerHarness

DIMENSIONS = 64
#: Words with the same vector and no character in common.
SYNONYMS = {"automobile": "car", "feline": "cat", "physician": "doctor"}


class WordEmbedder:
    """Texts with the same words get the same vectors; more words in common give nearer vectors."""

    def __init__(
        self, name: str = "words-64", *, ready: bool = True, dimensions: int = DIMENSIONS
    ) -> None:
        self.name = name if ready else ""
        self._dimensions = dimensions
        self.ready = ready
        self.asked: list[str] = []
        self.fault: Exception | None = None
        #: Awaited before each answer.
        self.gate = asyncio.Event()
        self.gate.set()

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return (await self.embed_all(texts)).vectors

    async def embed_all(
        self, texts: Sequence[str], dimensions: int | None = None, on_done: OnDone | None = None
    ) -> EmbeddingResult:
        if not self.ready:
            raise NoEmbedder("none")
        self.asked += texts
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        if on_done is not None and len(texts) > 1:
            await on_done(len(texts) // 2)
        return EmbeddingResult([vector_of(text, self._dimensions) for text in texts])


def vector_of(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    vector = [0.0] * dimensions
    for word in re.findall(r"\w+", text.lower()):
        known = SYNONYMS.get(word, word)
        vector[zlib.crc32(known.encode()) % dimensions] += 1.0
    length = math.sqrt(sum(number * number for number in vector)) or 1.0
    return [number / length for number in vector]


class ScriptedModel:
    """Gives a fixed answer, word by word; records its requests."""

    name = "sayer"

    def __init__(self, text: str, fault: Exception | None = None) -> None:
        self.text = text
        self.fault = fault
        #: Awaited before each answer.
        self.before: Callable[[JobContext], Awaitable[Any]] | None = None
        self.requests: list[ChatRequest] = []

    async def complete(self, context: JobContext, request: ChatRequest, sink: Sink) -> Completion:
        self.requests.append(request)
        if self.before is not None:
            await self.before(context)
        if self.fault is not None:
            raise self.fault
        for piece in re.findall(r"\S+\s*", self.text):
            await sink.text(piece)
        reason = CANCELED if context.cancel_requested else "stop"
        return Completion(self.text, reason, self.name, Usage(7, 3))


class JobEnd(NamedTuple):
    """End of a job, and its events."""

    status: str
    value: Any
    story: list[tuple[str, str, Any]]

    @property
    def result(self) -> dict[str, Any]:
        assert self.status == "done", self.value
        result: dict[str, Any] = self.value
        return result

    @property
    def kind(self) -> str:
        assert self.status == "error", self.value
        return str(self.value["kind"])

    def events(self, type: str) -> list[dict[str, Any]]:
        return [data for kind, _, data in self.story if kind == type]


class RagWorker(WorkerHarness):
    """A worker with documents. `do` runs a job to its end."""

    def __init__(self, registry: Registry, library: RagService, *worker: Any) -> None:
        backend, keys, identity = worker
        super().__init__(backend, keys, identity, registry)
        self.library = library
        #: The default namespace.
        self.ns = self.named("default")
        self._running: list[asyncio.Task[Any]] = []

    def named(self, ns: str, tenant: str = "") -> RagKeys:
        """The keys of a namespace."""
        return RagKeys(ns, tenant, self.keys.tag)

    async def open(self, *, background: bool = True) -> None:
        """Start as a worker does."""
        if not await self.client.exists(self.keys.queue):
            await self.group()
        if background:
            self._running.append(asyncio.create_task(self.library.run()))
        self.start()

    async def close(self) -> None:
        await cancel(*self._running)
        await self.library.close()
        await super().close()

    async def submit(
        self, payload: dict[str, Any], tenant: str = "", upload: bytes | None = None
    ) -> str:
        options = JobOptions(tenant=tenant or None).to_json()
        job_id = str(uuid.uuid4())
        if upload is not None:
            await self.client.set(self.ns.upload(job_id), upload, ex=600)
        body = json.dumps(payload).encode()
        await self.post(job_id=job_id, task="rag", payload=body, options=options)
        return job_id

    async def end(self, job_id: str) -> JobEnd:
        status = (await self.settled(job_id)).decode()
        record = await self.job(job_id)
        raw = record[b"error"] if status == "error" else record[b"result"]
        return JobEnd(status, json.loads(raw) if raw else None, await self.parsed_events(job_id))

    async def do(
        self, payload: dict[str, Any], tenant: str = "", upload: bytes | None = None
    ) -> JobEnd:
        return await self.end(await self.submit(payload, tenant, upload))

    async def add(
        self, text: str, document_id: str = "", ns: str = "default", tenant: str = "", **more: Any
    ) -> dict[str, Any]:
        """Ingest a document; returns the result."""
        document = {"text": text, **more, **({"id": document_id} if document_id else {})}
        return (await self.do({"op": "ingest", "ns": ns, "document": document}, tenant)).result

    async def delete(self, document_id: str, tenant: str = "") -> bool:
        """Delete a document; returns whether there was one."""
        ended = await self.do({"op": "delete", "document_id": document_id}, tenant)
        return ended.result["deleted"] is True

    async def ask(self, query: str, tenant: str = "", **more: Any) -> dict[str, Any]:
        return (await self.do({"query": query, **more}, tenant)).result

    async def found(self, query: str, tenant: str = "", **more: Any) -> list[str]:
        """The documents that a query finds, best first, without duplicates."""
        hits = (await self.ask(query, tenant, **more))["hits"]
        return list(dict.fromkeys(hit["document_id"] for hit in hits))

    async def search(self, query: str, mode: SearchMode = SearchMode.AUTO) -> list[str]:
        """The documents that this worker finds without a job, best first."""
        hits = await self.library.search("", "default", query, 5, mode)
        return [hit.document_id for hit in hits]

    async def record(self, document_id: str) -> DocumentRecord:
        record = await RagReader(self.client, self.keys.tag).get(self.ns, document_id)
        assert record is not None
        return record

    async def text(self, document_id: str) -> str:
        raw = await self.client.get(self.ns.text(document_id))
        return (raw or b"").decode()

    async def check_spans(self, parts: Sequence[dict[str, Any]]) -> None:
        """Check that every quotation equals the stored text."""
        for part in parts:
            text = await self.text(part["document_id"])
            assert text[part["start"] : part["end"]] == part["quote"]
            assert part["quote"]


RagMaker = Callable[..., Any]
