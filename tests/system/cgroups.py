"""Control groups of a machine's own, where no systemd outside hands them out.

Without them all machines would share one tree of groups: units of the same name in two machines
would be in one group, and systemd could not end what belongs to a unit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 10.0

_HOME = Path("/sys/fs/cgroup")
#: The trees in which systemd keeps its units; resource controllers are left alone.
_HYBRID = (_HOME / "systemd", _HOME / "unified")


def has_systemd() -> bool:
    """Whether a systemd runs outside; then it makes the groups."""
    return Path("/run/systemd/system").is_dir()


class Groups:
    """One machine's groups; entered by the process that starts it."""

    def __init__(self, name: str) -> None:
        trees = [tree for tree in _HYBRID if tree.is_dir()] or [_HOME]
        self._places = [] if has_systemd() else [tree / name for tree in trees]

    def make(self) -> None:
        """Make them."""
        for place in self._places:
            place.mkdir()

    def enter_command(self) -> str:
        """Shell words by which a shell puts itself, and so what it becomes, into them."""
        return "".join(f"echo $$ > {place}/cgroup.procs && " for place in self._places)

    def remove(self) -> None:
        """Remove them; the last processes may take a moment to be gone."""
        deadline = time.monotonic() + PATIENCE_S
        for place in self._places:
            while not _removed(place) and time.monotonic() < deadline:
                time.sleep(0.05)


def sweep(is_left_behind: Callable[[str], bool]) -> None:
    """Remove the groups of machines whose test run was killed."""
    for tree in (*_HYBRID, _HOME):
        for place in tree.glob("sluice-*"):
            if is_left_behind(place.name):
                _removed(place)


def _removed(place: Path) -> bool:
    try:
        for directory, _, _ in os.walk(place, topdown=False):
            os.rmdir(directory)
    except OSError:
        return False
    return True
