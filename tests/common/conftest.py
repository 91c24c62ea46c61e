"""Fixtures for tests of the job scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from common.contracts.jobs import JobKeys
from common.jobs.store import WorkerIdentity
from tests.common.kit import Scene
from tests.support.backends import Backend


@pytest.fixture
async def scene(backend: Backend, keys: JobKeys, worker: WorkerIdentity) -> AsyncIterator[Scene]:
    """A job store with helpers, on an empty Redis of every kind."""
    scene = Scene(backend, keys, worker)
    yield scene
    await scene.close()


@pytest.fixture
async def real_scene(
    real_backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[Scene]:
    """The same, on real servers only."""
    scene = Scene(real_backend, keys, worker)
    yield scene
    await scene.close()
