"""Fixtures: a history on every Redis backend, or only on the fake one."""

from __future__ import annotations

import pytest

from tests.gateway.observability.history.kit import History
from tests.support.backends import Backend


@pytest.fixture
def history(backend: Backend) -> History:
    return History(backend)


@pytest.fixture
def fake_history(fake_backend: Backend) -> History:
    return History(fake_backend)
