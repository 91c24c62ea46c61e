"""Workers with a real `apply` step, one for each kind of Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.store import WorkerIdentity
from sluice.worker.features.rag.service import RagService
from tests.support.servers import Backend
from tests.support.worker.memory_first import ApplyWorker, MakeApply, apply_registry
from tests.support.worker.rag import WordEmbedder


@pytest.fixture
async def make_apply(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[MakeApply]:
    """Creates and opens such workers, and closes them all."""
    made: list[ApplyWorker] = []

    async def make(embedder: WordEmbedder | None = None, most_documents: int = 100) -> ApplyWorker:
        library = RagService(embedder or WordEmbedder(ready=False), most_documents)
        made.append(ApplyWorker(backend, keys, worker, apply_registry(library)))
        made[-1].library = library
        await made[-1].open()
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
async def jobs(make_apply: MakeApply) -> ApplyWorker:
    """Such a worker, without vectors."""
    return await make_apply()
