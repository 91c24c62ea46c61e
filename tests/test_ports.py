"""Ports that tests choose for their servers."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ports

PICK = (
    "import sys; from tests.support import ports; print(ports.pick(), flush=True); sys.stdin.read()"
)


@pytest.mark.skipif(sys.platform != "linux", reason="ports are held by name on Linux only")
def test_two_processes_never_pick_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", PICK],
        cwd=Path(__file__).parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        ours = ports.pick()
        drawn = iter((theirs, ours, *range(ports._FIRST, ports._LAST)))
        monkeypatch.setattr(random, "randint", lambda first, last: next(drawn))
        assert ports.pick() not in (theirs, ours)
    finally:
        other.communicate()
