"""Redis servers as the installer configures them, one per version, and fake machines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.deploy.acl import InstalledRedis
from tests.support.deploy.fake_machine import FakeMachine, fake_redis
from tests.support.processes.worker import Process, spawner
from tests.support.servers import REAL, require_binary


@pytest.fixture(scope="module", params=REAL)
def installed_redis(request: Any) -> Iterator[InstalledRedis]:
    installed = InstalledRedis(require_binary(request.param))
    yield installed
    installed.close()


@pytest.fixture
def nothing_denied(installed_redis: InstalledRedis) -> Iterator[None]:
    """Empties Redis before the test; afterwards checks that no command was denied."""
    installed_redis.admin.flushall()
    installed_redis.admin.acl_log_reset()
    yield
    assert installed_redis.refusals() == set()


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    yield from spawner(tmp_path)


@pytest.fixture
def redis(tmp_path: Path) -> Path:
    """A fake redis-server that only prints its version."""
    return fake_redis(tmp_path / "redis-server", "7.0.15")


@pytest.fixture
def machine(tmp_path: Path, redis: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """An empty machine with a redis-server on PATH."""
    monkeypatch.setenv("PATH", f"{redis.parent}:{os.environ['PATH']}")
    return FakeMachine(tmp_path / "machine")
