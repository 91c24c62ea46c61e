"""A real Redis server of each kind."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.servers import REAL, RealServer


@pytest.fixture(params=REAL)
def server(request: Any, real_server: Any) -> RealServer:
    server: RealServer = real_server(request.param)
    return server
