"""Fixtures for tests of the image scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from common.contracts.jobs import JobKeys
from tests.common.features.images.kit import Gallery
from tests.common.features.workflows.kit import Doubting
from tests.support.backends import Backend


@pytest.fixture
async def gallery(backend: Backend, keys: JobKeys) -> AsyncIterator[Gallery]:
    """An image store on an empty Redis of every kind."""
    gallery = Gallery(backend, keys)
    yield gallery
    await gallery.close()


@pytest.fixture
async def real_gallery(real_backend: Backend, keys: JobKeys) -> AsyncIterator[Gallery]:
    """The same, on real servers only."""
    gallery = Gallery(real_backend, keys)
    yield gallery
    await gallery.close()


@pytest.fixture
async def doubting(backend: Backend, keys: JobKeys) -> AsyncIterator[Gallery]:
    """The same, where every reply except the second is lost."""
    gallery = Gallery(backend, keys, Doubting)
    yield gallery
    await gallery.close()
