"""Fixtures for tests of the job scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.store import WorkerIdentity
from tests.support.servers import Backend
from tests.support.store.jobs import StoreHarness


@pytest.fixture
async def harness(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[StoreHarness]:
    """A job store with helpers, on an empty Redis of every kind."""
    harness = StoreHarness(backend, keys, worker)
    yield harness
    await harness.close()
