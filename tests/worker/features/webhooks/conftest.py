"""Fixtures of the webhook tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from common.contracts.jobs import JobKeys
from tests.support.backends import Backend
from tests.support.webhook_receiver import Receiver, Script
from tests.worker.features.webhooks.kit import HookScene

Listen = Callable[..., Awaitable[Receiver]]


@pytest.fixture
async def hooks(backend: Backend, keys: JobKeys, tmp_path: Path) -> AsyncIterator[HookScene]:
    """On an empty Redis of every kind."""
    scene = HookScene(backend, keys, tmp_path)
    yield scene
    await scene.close()


@pytest.fixture
async def real_hooks(
    real_backend: Backend, keys: JobKeys, tmp_path: Path
) -> AsyncIterator[HookScene]:
    """On real servers only."""
    scene = HookScene(real_backend, keys, tmp_path)
    yield scene
    await scene.close()


@pytest.fixture
async def fake_hooks(
    fake_backend: Backend, keys: JobKeys, tmp_path: Path
) -> AsyncIterator[HookScene]:
    """On fakeredis only."""
    scene = HookScene(fake_backend, keys, tmp_path)
    yield scene
    await scene.close()


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
