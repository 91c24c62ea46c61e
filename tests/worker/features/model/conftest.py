"""Fixtures of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.model_server import ModelServer
from tests.worker.features.model.kit import Box, box_of, settings_for


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    """A scripted server that is up."""
    async with ModelServer() as started:
        yield started


@pytest.fixture
async def box(server: ModelServer, tmp_path: Path) -> AsyncIterator[Box]:
    """A client at that server, with the usual settings."""
    async with box_of(settings_for(server, tmp_path)) as started:
        yield started
