"""Fixtures of the document tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import settings

from common.contracts.jobs import JobKeys
from common.jobs.store import WorkerIdentity
from tests.support.backends import Backend
from tests.worker.features.rag.kit import RagMaker, rag_maker

settings.register_profile("sluice", deadline=None, database=None, derandomize=True)
settings.load_profile("sluice")


@pytest.fixture
async def rag(backend: Backend, keys: JobKeys, worker: WorkerIdentity) -> AsyncIterator[RagMaker]:
    """Creates workers with documents, on an empty Redis of every kind."""
    async for make in rag_maker(backend, keys, worker):
        yield make


@pytest.fixture
async def fake_rag(
    fake_backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[RagMaker]:
    """Creates workers with documents, on fakeredis only."""
    async for make in rag_maker(fake_backend, keys, worker):
        yield make
