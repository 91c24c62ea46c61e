"""Fixtures of the webhook tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluice.common.contracts.jobs import JobKeys
from tests.support.servers import Backend
from tests.support.worker.webhooks import WebhookHarness


@pytest.fixture
async def hooks(backend: Backend, keys: JobKeys, tmp_path: Path) -> AsyncIterator[WebhookHarness]:
    """On an empty Redis of every kind."""
    harness = WebhookHarness(backend, keys, tmp_path)
    yield harness
    await harness.close()
