"""A Redis with a history, of every kind or only a fake one."""

from __future__ import annotations

import pytest

from tests.backends import Backend
from tests.gateway.stats.kit import History


@pytest.fixture
def history(backend: Backend) -> History:
    return History(backend)


@pytest.fixture
def fake_history(fake_backend: Backend) -> History:
    return History(fake_backend)
