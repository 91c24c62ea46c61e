"""Fixtures of the worker's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.store import WorkerIdentity
from tests.support.servers import Backend
from tests.support.store.jobs import StoreHarness
from tests.support.worker.harness import MakeWorker, worker_maker


@pytest.fixture
async def make_worker(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeWorker]:
    """Makes workers on an empty Redis of every kind. They scan often for expired leases."""
    monkeypatch.setattr("sluice.worker.queue.recovery.LONGEST_WAIT_S", 0.1)
    async for make in worker_maker(backend, keys, worker):
        yield make


@pytest.fixture
async def harness(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[StoreHarness]:
    """The stores on an empty Redis of every kind, without a worker."""
    harness = StoreHarness(backend, keys, worker)
    yield harness
    await harness.close()
