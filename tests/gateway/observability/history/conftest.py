"""Fixtures: a history on every Redis backend, or only on the fake one."""

from __future__ import annotations

import pytest

from tests.support.gateway.history import History
from tests.support.servers import Backend


@pytest.fixture
def history(backend: Backend) -> History:
    return History(backend)
