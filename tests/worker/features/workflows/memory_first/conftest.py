"""Workers with a real `apply` step, one for each kind of Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from common.contracts.jobs import JobKeys
from common.jobs.store import WorkerIdentity
from tests.support.backends import Backend
from tests.worker.features.workflows.memory_first.apply_kit import ApplyMaker, apply_maker


@pytest.fixture
async def rigs(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[ApplyMaker]:
    async for make in apply_maker(backend, keys, worker):
        yield make


@pytest.fixture
async def fake_rigs(
    fake_backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[ApplyMaker]:
    async for make in apply_maker(fake_backend, keys, worker):
        yield make
