"""Fixtures for tests of the scripts of images and workflows.

Every reply to a doubting store except the second is lost. An impatient store fails soon if Redis
refuses its writes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.redis.batching import ScriptBatcher
from tests.support.servers import Backend
from tests.support.store.images import ImageHarness
from tests.support.store.workflows import Doubting, Impatient, WorkflowHarness


def store(kind: type[Any], batcher: type[ScriptBatcher] = ScriptBatcher) -> Any:
    """A fixture: such a store on an empty Redis of every kind."""

    @pytest.fixture
    async def opened(backend: Backend, keys: JobKeys) -> AsyncIterator[Any]:
        harness = kind(backend, keys, batcher)
        yield harness
        await harness.close()

    return opened


images, workflow = store(ImageHarness), store(WorkflowHarness)
doubting_images = store(ImageHarness, Doubting)
doubting_workflow = store(WorkflowHarness, Doubting)
impatient_images = store(ImageHarness, Impatient)
impatient_workflow = store(WorkflowHarness, Impatient)
