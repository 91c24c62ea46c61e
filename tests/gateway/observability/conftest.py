"""Timeouts for busy machines."""

from __future__ import annotations

import pytest

from gateway.observability.metrics import routes as metrics_route
from gateway.observability.status import routes as status_route


@pytest.fixture(autouse=True)
def generous_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not look like an unreachable Redis."""
    for route in (metrics_route, status_route):
        assert route.TIMEOUT_S <= 2
        monkeypatch.setattr(route, "TIMEOUT_S", 20.0)
