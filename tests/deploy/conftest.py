"""Servers as the installer sets them up, one of each version, shared by a module's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.backends import REAL, require_binary
from tests.deploy.kit import InstalledRedis


@pytest.fixture(scope="module", params=REAL)
def installed_redis(request: Any) -> Iterator[InstalledRedis]:
    installed = InstalledRedis(require_binary(request.param))
    yield installed
    installed.close()
