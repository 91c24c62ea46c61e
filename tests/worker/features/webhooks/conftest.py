"""Fixtures of the webhook tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from common.contracts.jobs import JobKeys
from tests.support.servers import Backend
from tests.support.webhook_receiver import Receiver, Script
from tests.support.worker.webhooks import WebhookHarness

Listen = Callable[..., Awaitable[Receiver]]


@pytest.fixture
async def hooks(backend: Backend, keys: JobKeys, tmp_path: Path) -> AsyncIterator[WebhookHarness]:
    """On an empty Redis of every kind."""
    harness = WebhookHarness(backend, keys, tmp_path)
    yield harness
    await harness.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Listen]:
    """Starts receivers, and stops all of them."""
    started: list[Receiver] = []

    async def start(script: Script | None = None, **options: object) -> Receiver:
        started.append(Receiver(script))
        return await started[-1].start(**options)  # type: ignore[arg-type]

    yield start
    for each in started:
        await each.close()
