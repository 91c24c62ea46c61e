"""Imports that processes do not need are avoided."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_metrics_of_redis_py_are_not_imported() -> None:
    code = (
        "import sys, sluice.common.redis.connection\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.sdk')]\n"
        "import opentelemetry.sdk.metrics\n"  # still available if it is needed
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_contracts_can_be_imported_without_redis_py() -> None:
    """The installer needs them, on a system Python without packages."""
    code = "import sluice.common.contracts.access, sys; assert 'redis' not in sys.modules"
    subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(ROOT)}, check=True, timeout=60
    )
