"""Fixtures of the tests of the BullMQ worker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.backends import Backend, missing
from tests.worker.bullmq.kit import Bull, bull_on

try:
    import bullmq  # noqa: F401
except ImportError:
    missing("the extra `bullmq` is not installed")


@pytest.fixture
async def bull(real_backend: Backend) -> AsyncIterator[Bull]:
    """An empty queue on every kind of real server."""
    async for made in bull_on(real_backend):
        yield made
