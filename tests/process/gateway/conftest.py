"""Collection of the tests of a real gateway."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out slow tests whose collection alone takes seconds: some per operation of the API."""
    if collection_path.name == "test_schemathesis.py" and config.getoption("--tier") == "fast":
        return True
    return None
