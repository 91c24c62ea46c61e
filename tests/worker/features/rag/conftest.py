"""Fixtures of the document tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import settings

from common.contracts.jobs import JobKeys
from common.jobs.store import WorkerIdentity
from tests.support.servers import Backend
from tests.support.worker.rag import RagMaker, rag_maker

settings.register_profile("sluice", deadline=None, database=None, derandomize=True)
settings.load_profile("sluice")


@pytest.fixture
async def rag(backend: Backend, keys: JobKeys, worker: WorkerIdentity) -> AsyncIterator[RagMaker]:
    """Creates workers with documents, on an empty Redis of every kind."""
    async for make in rag_maker(backend, keys, worker):
        yield make
