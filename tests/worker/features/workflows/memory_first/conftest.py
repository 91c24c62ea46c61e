"""Workers with a real `apply` step, one for each kind of Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from common.contracts.jobs import JobKeys
from common.jobs.store import WorkerIdentity
from tests.support.servers import Backend
from tests.support.worker.memory_first_apply import ApplyMaker, apply_maker


@pytest.fixture
async def make_apply(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[ApplyMaker]:
    async for make in apply_maker(backend, keys, worker):
        yield make
