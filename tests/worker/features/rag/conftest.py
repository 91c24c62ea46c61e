"""Fixtures of the document tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import settings

from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.store import WorkerIdentity
from sluice.worker.features.rag.service import RagService
from sluice.worker.handlers import rag as handler
from sluice.worker.registry import Registry
from tests.support.servers import Backend
from tests.support.worker.rag import RagMaker, RagWorker, ScriptedModel, WordEmbedder

settings.register_profile("sluice", deadline=None, database=None, derandomize=True)
settings.load_profile("sluice")


@pytest.fixture
async def rag(backend: Backend, keys: JobKeys, worker: WorkerIdentity) -> AsyncIterator[RagMaker]:
    """Creates workers with documents, on an empty Redis of every kind."""
    made: list[RagWorker] = []

    async def make(
        embedder: WordEmbedder | None = None,
        model: ScriptedModel | None = None,
        *,
        consumer: str = "c1",
        most_documents: int = 100,
        opened: bool = True,
        background: bool = True,
    ) -> RagWorker:
        registry = Registry()
        library = RagService(embedder or WordEmbedder(ready=False), most_documents)
        registry.add_service(library)
        handler.add_handler(registry, library, model)
        identity = worker._replace(consumer=consumer)
        made.append(RagWorker(registry, library, backend, keys, identity))
        await library.start(made[-1].services)
        if opened:
            await made[-1].open(background=background)
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
async def lexical(rag: RagMaker) -> RagWorker:
    """A worker with documents and without an embedder or a model."""
    return await rag()
