"""Fixtures for tests of the image scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from common.contracts.jobs import JobKeys
from tests.support.servers import Backend
from tests.support.store.images import ImageHarness
from tests.support.store.workflows import Doubting


@pytest.fixture
async def images(backend: Backend, keys: JobKeys) -> AsyncIterator[ImageHarness]:
    """An image store on an empty Redis of every kind."""
    images = ImageHarness(backend, keys)
    yield images
    await images.close()


@pytest.fixture
async def doubting(backend: Backend, keys: JobKeys) -> AsyncIterator[ImageHarness]:
    """The same, where every reply except the second is lost."""
    images = ImageHarness(backend, keys, Doubting)
    yield images
    await images.close()
