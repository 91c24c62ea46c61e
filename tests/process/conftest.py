"""Real processes, and a real server of each kind for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends import REAL, RealServer
from tests.worker.processes import Process, spawner


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    yield from spawner(tmp_path)


@pytest.fixture(params=REAL)
def server(request: Any, real_server: Callable[[str], RealServer]) -> RealServer:
    server = real_server(request.param)
    server.client.flushall()
    return server
