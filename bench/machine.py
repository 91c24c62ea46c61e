"""What the machine is doing, and what a process has cost so far."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import NamedTuple

#: Share of all CPU time that strangers may use before numbers are no basis for a verdict.
BUSY_SHARE = 0.15
SAMPLE_S = 1.5
_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Load(NamedTuple):
    """How busy the machine is with other things."""

    cpus: int
    load_1m: float
    #: CPU time used by strangers, of all there is; 0 to 1.
    busy_share: float

    @property
    def quiet(self) -> bool:
        """Whether numbers taken meanwhile deserve a verdict."""
        return self.busy_share <= BUSY_SHARE


class Observer:
    """Tells what strangers did on the machine since it was made, our own work taken off."""

    def __init__(self) -> None:
        self._busy, self._all = _cpu_ticks()
        self._own = _own_cpu_seconds()

    def load(self) -> Load:
        """How busy it was. Children count as ours once they have ended."""
        busy, everything = _cpu_ticks()
        own_ticks = (_own_cpu_seconds() - self._own) * _TICKS_PER_S
        strangers = max(busy - self._busy - own_ticks, 0.0)
        share = strangers / max(everything - self._all, 1)
        return Load(os.cpu_count() or 1, os.getloadavg()[0], share)


def sample_load(seconds: float = SAMPLE_S) -> Load:
    """Sit still for a moment and see who works."""
    observer = Observer()
    time.sleep(seconds)
    return observer.load()


def _own_cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _cpu_ticks() -> tuple[int, int]:
    """Ticks spent working (steal counts: it is somebody else's work) and ticks in all."""
    try:
        first_line = (_PROC / "stat").read_text().split("\n", 1)[0]
    except OSError:  # no /proc: only the load average speaks
        return 0, 0
    ticks = [int(word) for word in first_line.split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process's living threads; nanoseconds where the kernel tells, else ticks."""
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
    """Resident memory of a process."""
    pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def share_mb(pid: int) -> float:
    """Its proportional share of memory: what several processes have in common counts once."""
    for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    return resident_mb(pid)


def with_children(pid: int) -> list[int]:
    """A process and all that came of it and live."""
    try:
        tasks = (_PROC / str(pid) / "task").glob("*/children")
        children = [int(word) for path in tasks for word in path.read_text().split()]
    except OSError:  # it has just ended
        return []
    return [pid, *(each for child in children for each in with_children(child))]


def raise_open_files(wanted: int) -> int:
    """Allow this process and its children many sockets; returns how many they may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return limit if soft == resource.RLIM_INFINITY else soft
