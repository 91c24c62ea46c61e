"""Load of the machine, and CPU time and memory of processes."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import NamedTuple

#: Share of CPU time that other processes may use before the results are not evaluated.
BUSY_SHARE = 0.15
SAMPLE_S = 1.5
_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Load(NamedTuple):
    """Load of the machine by other processes."""

    cpus: int
    load_1m: float
    #: CPU time used by other processes, as a share of all CPU time; 0 to 1.
    busy_share: float

    @property
    def quiet(self) -> bool:
        """True if results measured meanwhile can be evaluated."""
        return self.busy_share <= BUSY_SHARE


class Observer:
    """Measures the CPU time of other processes since its creation; excludes this process and its
    children.
    """

    def __init__(self) -> None:
        self._busy, self._all = _cpu_ticks()
        self._own = _own_cpu_seconds()

    def load(self) -> Load:
        """Load since creation. Children are excluded only after they have ended."""
        busy, everything = _cpu_ticks()
        own_ticks = (_own_cpu_seconds() - self._own) * _TICKS_PER_S
        others = max(busy - self._busy - own_ticks, 0.0)
        share = others / max(everything - self._all, 1)
        return Load(os.cpu_count() or 1, os.getloadavg()[0], share)


def sample_load(seconds: float = SAMPLE_S) -> Load:
    """Measures the load for a moment without doing anything."""
    observer = Observer()
    time.sleep(seconds)
    return observer.load()


def _own_cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _cpu_ticks() -> tuple[int, int]:
    """Busy ticks (including steal, which is used by others) and all ticks."""
    try:
        first_line = (_PROC / "stat").read_text().split("\n", 1)[0]
    except OSError:  # no /proc: only the load average is known
        return 0, 0
    ticks = [int(word) for word in first_line.split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def cpu_seconds(pid: int) -> float:
    """CPU time of the live threads of a process; in nanoseconds if the kernel provides them, else
    ticks.
    """
    tasks = _PROC / str(pid) / "task"
    try:
        lines = [path.read_text() for path in tasks.glob("*/schedstat")]
        if lines:
            return sum(int(line.split()[0]) for line in lines) / 1e9
    except OSError:
        pass
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_mb(pid: int) -> float:
    pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def share_mb(pid: int) -> float:
    """Proportional set size: memory shared by several processes counts once."""
    for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    return resident_mb(pid)


def with_children(pid: int) -> list[int]:
    """A process and all its live descendants."""
    try:
        tasks = (_PROC / str(pid) / "task").glob("*/children")
        children = [int(word) for path in tasks for word in path.read_text().split()]
    except OSError:  # the process has just ended
        return []
    return [pid, *(each for child in children for each in with_children(child))]


def raise_open_files(requested: int) -> int:
    """Raises the open file limit of this process and its children; returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = requested if hard == resource.RLIM_INFINITY else min(requested, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return limit if soft == resource.RLIM_INFINITY else soft
