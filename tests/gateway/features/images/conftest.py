"""Fixtures of the image API's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import Make
from tests.gateway.features.images.kit import Images

MakeImages = Callable[..., Images]


def _maker(make: Make, directory: Path) -> MakeImages:
    def factory(**settings: Any) -> Images:
        return Images(make(sluice_data_dir=str(directory), **settings))

    return factory


@pytest.fixture
async def make_images(make: Make, tmp_path: Path) -> MakeImages:
    """Image APIs with settings of their own, on every kind of Redis."""
    return _maker(make, tmp_path)


@pytest.fixture
async def fake_make_images(fake_make: Make, tmp_path: Path) -> MakeImages:
    """The same, on fakeredis only: for what does not depend on the server."""
    return _maker(fake_make, tmp_path)


@pytest.fixture
async def images(make_images: MakeImages) -> Images:
    """The image API on every kind of Redis."""
    return make_images()


@pytest.fixture
async def fake_images(fake_make_images: MakeImages) -> Images:
    """The same, on fakeredis only."""
    return fake_make_images()
