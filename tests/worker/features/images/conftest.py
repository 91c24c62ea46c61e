"""Fixtures of the image tests of the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.store import WorkerIdentity
from sluice.worker.registry import Registry
from tests.support.files.pixels import Make, maker
from tests.support.servers import Backend
from tests.support.worker.images import ImageMaker, ImageWorker, image_settings, registry_of


@pytest.fixture
async def imagers(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity, tmp_path: Path
) -> AsyncIterator[ImageMaker]:
    """Creates and opens workers with images, on an empty Redis of every kind."""
    made: list[ImageWorker] = []

    async def make(
        *,
        consumer: str = "c1",
        opened: bool = True,
        read: bool = True,
        registry: Registry | None = None,
        options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> ImageWorker:
        registry = registry or registry_of(image_settings(tmp_path, **settings))
        identity = worker._replace(consumer=consumer)
        made.append(ImageWorker(tmp_path, registry, backend, keys, identity, **(options or {})))
        if opened:
            await made[-1].open(read=read)
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
async def imager(imagers: ImageMaker) -> ImageWorker:
    """A worker with images."""
    return await imagers()


@pytest.fixture
async def idle(imagers: ImageMaker) -> ImageWorker:
    """A worker with images that reads no jobs."""
    return await imagers(read=False)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Runs the pipeline in the test's process."""
    return maker(tmp_path)
