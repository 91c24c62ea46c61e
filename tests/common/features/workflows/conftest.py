"""Fixtures for tests of the workflow scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from common.contracts.jobs import JobKeys
from tests.support.servers import Backend
from tests.support.store.workflows import Doubting, WorkflowHarness


@pytest.fixture
async def workflow(backend: Backend, keys: JobKeys) -> AsyncIterator[WorkflowHarness]:
    """A workflow store on an empty Redis of every kind."""
    workflow = WorkflowHarness(backend, keys)
    yield workflow
    await workflow.close()


@pytest.fixture
async def doubting(backend: Backend, keys: JobKeys) -> AsyncIterator[WorkflowHarness]:
    """The same, where every reply except the second is lost."""
    workflow = WorkflowHarness(backend, keys, Doubting)
    yield workflow
    await workflow.close()
