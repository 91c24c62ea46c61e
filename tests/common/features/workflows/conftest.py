"""Fixtures for tests of the workflow scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from common.contracts.jobs import JobKeys
from tests.common.features.workflows.kit import Doubting, Flow
from tests.support.backends import Backend


@pytest.fixture
async def flow(backend: Backend, keys: JobKeys) -> AsyncIterator[Flow]:
    """A workflow store on an empty Redis of every kind."""
    flow = Flow(backend, keys)
    yield flow
    await flow.close()


@pytest.fixture
async def real_flow(real_backend: Backend, keys: JobKeys) -> AsyncIterator[Flow]:
    """The same, on real servers only."""
    flow = Flow(real_backend, keys)
    yield flow
    await flow.close()


@pytest.fixture
async def doubting(backend: Backend, keys: JobKeys) -> AsyncIterator[Flow]:
    """The same, where every reply except the second is lost."""
    flow = Flow(backend, keys, Doubting)
    yield flow
    await flow.close()
