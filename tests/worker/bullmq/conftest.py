"""Fixtures of the tests of the BullMQ worker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.servers import Backend, missing
from tests.support.worker.bullmq import Bull, bull_on

try:
    import bullmq  # noqa: F401
except ImportError:
    missing("the extra `bullmq` is not installed")


@pytest.fixture
async def bull(backend: Backend) -> AsyncIterator[Bull]:
    async for made in bull_on(backend):
        yield made
