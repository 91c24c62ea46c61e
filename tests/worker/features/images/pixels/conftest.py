"""Fixtures of the pixel tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.files.pixels import Make, maker


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path)
