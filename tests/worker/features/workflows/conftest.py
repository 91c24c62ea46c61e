"""Fixtures of the workflow tests of the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from common.contracts.jobs import JobKeys
from common.jobs.store import WorkerIdentity
from tests.support.servers import Backend
from tests.support.worker.workflows import FlowMaker, flow_maker


@pytest.fixture
async def flows(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[FlowMaker]:
    """Creates workers with workflows, on an empty Redis of every kind."""
    async for make in flow_maker(backend, keys, worker):
        yield make
