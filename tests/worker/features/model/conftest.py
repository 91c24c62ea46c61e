"""Fixtures of the model tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.model.server import ModelServer
from tests.support.worker.model import MakeModel, ModelHarness, settings_for


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.worker.features.model.requests.RETRY_DELAYS_S", (0.01, 0.02))
    monkeypatch.setattr("sluice.worker.features.model.circuit.FIRST_PAUSE_S", 0.3)
    monkeypatch.setattr("sluice.worker.features.model.availability.DOWN_PROBE_EVERY_S", 0.05)
    monkeypatch.setattr("sluice.worker.features.model.availability.HELD_TASK_RETRY_S", 0.1)


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    """A running scripted server."""
    async with ModelServer() as started:
        yield started


@pytest.fixture
async def make_model(server: ModelServer, tmp_path: Path) -> AsyncIterator[MakeModel]:
    """Starts clients of that server, or of another one or none, and closes them all."""
    made: list[ModelHarness] = []

    async def make(
        server: ModelServer | None = server, *, watching: bool = True, **settings: Any
    ) -> ModelHarness:
        made.append(ModelHarness(server, settings_for(server, tmp_path, **settings)))
        await made[-1].start(watching=watching)
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
async def model(make_model: MakeModel) -> ModelHarness:
    """A client of that server, with default settings."""
    return await make_model()
