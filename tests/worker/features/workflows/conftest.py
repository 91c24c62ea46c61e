"""Fixtures of the workflow tests of the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.features.workflows.definitions import WorkflowDefinition
from sluice.common.jobs.store import WorkerIdentity
from sluice.worker.features.workflows.registry import Step
from sluice.worker.registry import Registry
from tests.support.servers import Backend
from tests.support.worker.workflows import FlowMaker, WorkflowWorker, registry_of


@pytest.fixture
async def flows(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[FlowMaker]:
    """Creates and opens workers with workflows, on an empty Redis of every kind."""
    made: list[WorkflowWorker] = []

    async def make(
        *workflows: tuple[WorkflowDefinition, Mapping[str, Step]],
        consumer: str = "c1",
        registry: Registry | None = None,
        opened: bool = True,
        **options: Any,
    ) -> WorkflowWorker:
        identity = worker._replace(consumer=consumer)
        registry = registry or registry_of(*workflows)
        made.append(WorkflowWorker(backend, keys, identity, registry, **options))
        if opened:
            await made[-1].open()
        return made[-1]

    yield make
    for each in made:
        await each.close()
