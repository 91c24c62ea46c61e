"""What a process loads without a use for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_metrics_of_redis_py_are_left_out() -> None:
    code = (
        "import sys, common.redis.connection\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.sdk')]\n"
        "import opentelemetry.sdk.metrics\n"  # whoever has a use for them gets them
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_names_can_be_had_without_redis_py() -> None:
    """The installer needs them, on a system's Python that has no packages."""
    code = "import common.contracts.access, sys; assert 'redis' not in sys.modules"
    subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(ROOT)}, check=True, timeout=60
    )
