"""Fixtures of the model tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.model_server import ModelServer
from tests.worker.features.model.kit import ClientRig, open_client, settings_for


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    """A running scripted server."""
    async with ModelServer() as started:
        yield started


@pytest.fixture
async def client_rig(server: ModelServer, tmp_path: Path) -> AsyncIterator[ClientRig]:
    """A client of that server, with default settings."""
    async with open_client(settings_for(server, tmp_path)) as started:
        yield started
