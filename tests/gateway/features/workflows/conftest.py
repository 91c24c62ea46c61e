"""Fixtures of the workflow API's tests."""

from __future__ import annotations

import pytest

from tests.gateway.conftest import Make
from tests.gateway.features.workflows.kit import Workflows


@pytest.fixture
async def workflows(make: Make) -> Workflows:
    """The workflow API on every kind of Redis."""
    return Workflows(make())


@pytest.fixture
async def real_workflows(real_make: Make) -> Workflows:
    """The same, on real servers only."""
    return Workflows(real_make())


@pytest.fixture
async def fake_workflows(fake_make: Make) -> Workflows:
    """The same, on fakeredis only: for what does not depend on the server."""
    return Workflows(fake_make())
