"""The built distribution, and the wheel installed in a separate virtualenv."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.installed import Installation, install
from tools import distribution


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and source distribution of the tracked files."""
    wheel, sdist = distribution.build(tmp_path_factory.mktemp("dist"), 1_700_000_000)
    return wheel, sdist


@pytest.fixture(scope="session")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return install(built[0], tmp_path_factory.mktemp("installed") / "venv")
