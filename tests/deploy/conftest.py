"""Servers as the installer sets them up, one of each version; boxes with nothing behind them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.box import Box, fake_redis
from tests.deploy.kit import InstalledRedis
from tests.support.backends import REAL, require_binary


@pytest.fixture(scope="module", params=REAL)
def installed_redis(request: Any) -> Iterator[InstalledRedis]:
    installed = InstalledRedis(require_binary(request.param))
    yield installed
    installed.close()


@pytest.fixture
def redis(tmp_path: Path) -> Path:
    """A redis-server that can do nothing but tell its version."""
    return fake_redis(tmp_path / "redis-server", "7.0.15")


@pytest.fixture
def box(tmp_path: Path, redis: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    """An empty box whose PATH leads to a redis-server."""
    monkeypatch.setenv("PATH", f"{redis.parent}:{os.environ['PATH']}")
    return Box(tmp_path / "box")
