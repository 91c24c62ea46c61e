"""What this process takes from the machine, read from /proc; zeros where there is none."""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

_STATM = "/proc/self/statm"
_FDS = "/proc/self/fd"


class ProcessUsage(NamedTuple):
    """Memory, open files and processor time."""

    rss_bytes: int
    open_fds: int
    cpu_s: float


def usage() -> ProcessUsage:
    """As it stands now."""
    times = resource.getrusage(resource.RUSAGE_SELF)
    return ProcessUsage(_rss_bytes(), _open_fds(), times.ru_utime + times.ru_stime)


def _rss_bytes() -> int:
    try:
        with open(_STATM, "rb") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0


def _open_fds() -> int:
    try:
        return len(os.listdir(_FDS))
    except OSError:
        return 0
