"""Fixtures of the image tests of the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.contracts.jobs import JobKeys
from common.jobs.store import WorkerIdentity
from tests.support.backends import Backend
from tests.worker.features.images.kit import ImageMaker, image_maker


@pytest.fixture
async def imagers(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity, tmp_path: Path
) -> AsyncIterator[ImageMaker]:
    """Creates workers with images, on an empty Redis of every kind."""
    async for make in image_maker(backend, keys, worker, tmp_path):
        yield make


@pytest.fixture
async def fake_imagers(
    fake_backend: Backend, keys: JobKeys, worker: WorkerIdentity, tmp_path: Path
) -> AsyncIterator[ImageMaker]:
    """Creates workers with images, on fakeredis only."""
    async for make in image_maker(fake_backend, keys, worker, tmp_path):
        yield make
