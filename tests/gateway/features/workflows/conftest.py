"""Fixtures of the workflow API's tests."""

from __future__ import annotations

import pytest

from tests.support.gateway.harness import Make
from tests.support.gateway.workflows import Workflows


@pytest.fixture
async def workflows(make: Make) -> Workflows:
    """The workflow API on every kind of Redis."""
    return Workflows(make())
