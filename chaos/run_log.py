"""Log of handler runs: handlers write start and end, and the checks read them.

Each line is one system call, so that lines written before a kill -9 are not lost. Times are of the
monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DIRECTORY_VARIABLE: Final = "CHAOS_RUN_LOGS"
_STARTED, _ENDED = "+", "-"


@dataclass(frozen=True)
class HandlerRun:
    """One run of a handler; `ended_ns` is None if its process was killed first."""

    process: str
    job_id: str
    attempt: int
    task: str
    started_ns: int
    ended_ns: int | None


class RunLog:
    """The log of this process."""

    def __init__(self, directory: str, name: str) -> None:
        path = Path(directory) / f"{name}.{os.getpid()}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @contextmanager
    def run(self, job_id: str, attempt: int, task: str) -> Iterator[None]:
        """Logs start and end of a handler."""
        self._write(_STARTED, job_id, attempt, task)
        try:
            yield
        finally:
            self._write(_ENDED, job_id, attempt, task)

    def _write(self, mark: str, job_id: str, attempt: int, task: str) -> None:
        os.write(self._file, f"{mark} {time.monotonic_ns()} {job_id} {attempt} {task}\n".encode())


def read_all(directory: Path) -> list[HandlerRun]:
    """Reads the logs of all processes."""
    return [run for path in sorted(directory.iterdir()) for run in _read(path)]


def _read(path: Path) -> list[HandlerRun]:
    # After a failover that lost the first start, an attempt may run twice, even in one process.
    started: dict[tuple[str, int], list[tuple[int, str]]] = {}
    runs: list[HandlerRun] = []
    for line in path.read_text().splitlines():
        mark, at_ns, job_id, attempt, task = line.split(" ")
        name = job_id, int(attempt)
        if mark == _STARTED:
            started.setdefault(name, []).append((int(at_ns), task))
        else:
            start_ns, task = started[name].pop(0)
            runs.append(HandlerRun(path.name, *name, task, start_ns, int(at_ns)))
    runs += (
        HandlerRun(path.name, *name, task, at_ns, None)
        for name, unfinished in started.items()
        for at_ns, task in unfinished
    )
    return runs
