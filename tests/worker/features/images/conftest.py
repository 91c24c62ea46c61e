"""Fixtures of the image tests of the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.contracts.jobs import JobKeys
from common.jobs.store import WorkerIdentity
from tests.support.servers import Backend
from tests.support.worker.images import ImageMaker, image_maker


@pytest.fixture
async def imagers(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity, tmp_path: Path
) -> AsyncIterator[ImageMaker]:
    """Creates workers with images, on an empty Redis of every kind."""
    async for make in image_maker(backend, keys, worker, tmp_path):
        yield make
