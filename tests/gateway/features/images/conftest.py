"""Fixtures of the image API's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway.harness import Make
from tests.support.gateway.images import Images

MakeImages = Callable[..., Images]


def _maker(make: Make, directory: Path) -> MakeImages:
    def factory(**settings: Any) -> Images:
        return Images(make(sluice_data_dir=str(directory), **settings))

    return factory


@pytest.fixture
async def make_images(make: Make, tmp_path: Path) -> MakeImages:
    """Image APIs with separate settings, on every kind of Redis."""
    return _maker(make, tmp_path)


@pytest.fixture
async def images(make_images: MakeImages) -> Images:
    """The image API on every kind of Redis."""
    return make_images()
