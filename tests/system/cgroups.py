"""Control groups for machines on a host without systemd.

Without them all machines would share one cgroup tree: units of the same name in two machines would
be in one group, and systemd could not kill the processes of a unit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

TIMEOUT_S = 10.0

_HOME = Path("/sys/fs/cgroup")
#: Hierarchies in which systemd keeps its units; resource controllers are not changed.
_HYBRID = (_HOME / "systemd", _HOME / "unified")


def has_systemd() -> bool:
    """True if systemd runs on the host; then it creates the groups."""
    return Path("/run/systemd/system").is_dir()


class Groups:
    """The groups of one machine; entered by the process that starts it."""

    def __init__(self, name: str) -> None:
        trees = [tree for tree in _HYBRID if tree.is_dir()] or [_HOME]
        self._directories = [] if has_systemd() else [tree / name for tree in trees]

    def make(self) -> None:
        for directory in self._directories:
            directory.mkdir()

    def enter_command(self) -> str:
        """Shell commands with which a shell moves itself, and what it executes, into the groups."""
        return "".join(f"echo $$ > {directory}/cgroup.procs && " for directory in self._directories)

    def remove(self) -> None:
        """Removes the groups; the last processes may need a moment to exit."""
        deadline = time.monotonic() + TIMEOUT_S
        for directory in self._directories:
            while not _removed(directory) and time.monotonic() < deadline:
                time.sleep(0.05)


def remove_stale(is_left_behind: Callable[[str], bool]) -> None:
    """Removes the groups of machines whose test run was killed."""
    for tree in (*_HYBRID, _HOME):
        for directory in tree.glob("sluice-*"):
            if is_left_behind(directory.name):
                _removed(directory)


def _removed(group: Path) -> bool:
    try:
        for directory, _, _ in os.walk(group, topdown=False):
            os.rmdir(directory)
    except OSError:
        return False
    return True
