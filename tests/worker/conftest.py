"""Fixtures of the worker's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from common.contracts.jobs import JobKeys
from common.jobs.store import WorkerIdentity
from tests.support.backends import Backend
from tests.worker.kit import RigMaker, rig_maker


@pytest.fixture
async def rig(backend: Backend, keys: JobKeys, worker: WorkerIdentity) -> AsyncIterator[RigMaker]:
    """Makes workers on an empty Redis of every kind."""
    async for make in rig_maker(backend, keys, worker):
        yield make


@pytest.fixture
async def real_rig(
    real_backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[RigMaker]:
    """The same, on real servers only."""
    async for make in rig_maker(real_backend, keys, worker):
        yield make


@pytest.fixture
async def fake_rig(
    fake_backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[RigMaker]:
    """The same, on fakeredis only."""
    async for make in rig_maker(fake_backend, keys, worker):
        yield make
