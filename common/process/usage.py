"""Resource usage of this process: event loop lag, memory, open files, CPU time."""

from __future__ import annotations

import asyncio
import os
import resource
from collections import deque
from typing import NamedTuple

SAMPLE_INTERVAL_S = 0.5
#: The maximum of this many samples is reported, so that a stall between two reports shows.
SAMPLES_KEPT = 30


class LoopLag:
    """Measures how late the event loop runs, by sleeping a fixed time again and again."""

    def __init__(self, every_s: float = SAMPLE_INTERVAL_S) -> None:
        self._every_s = every_s
        self._samples: deque[float] = deque(maxlen=SAMPLES_KEPT)

    @property
    def worst_s(self) -> float:
        """The longest delay of the last few seconds."""
        return max(self._samples, default=0.0)

    async def run(self) -> None:
        while True:
            await self.run_once()

    async def run_once(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._every_s
        await asyncio.sleep(self._every_s)
        self.record(loop.time() - due)

    def record(self, late_s: float) -> None:
        self._samples.append(max(0.0, late_s))


def raise_file_limit(wanted: int) -> int:
    """Raise the soft limit of open files to `wanted`, or to the hard limit; returns the new limit.

    The usual soft limit of 1024 exists for programs that use select(). A process may raise it up to
    the hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, wanted)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft


_STATM = "/proc/self/statm"
_FDS = "/proc/self/fd"


class ProcessUsage(NamedTuple):
    """Memory, open files and CPU time."""

    rss_bytes: int
    open_fds: int
    cpu_s: float


def process_usage() -> ProcessUsage:
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
