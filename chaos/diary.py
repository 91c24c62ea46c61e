"""What ran when, in which process: handlers write it down, and the oracle reads it.

A line is one system call, so that what a process wrote before kill -9 is there afterwards. Times
are those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DIRECTORY_VARIABLE: Final = "CHAOS_DIARY"
_BEGAN, _ENDED = "+", "-"


@dataclass(frozen=True)
class Stint:
    """One run of a handler; `ended_ns` is None where its process died first."""

    process: str
    job_id: str
    attempt: int
    task: str
    began_ns: int
    ended_ns: int | None


class Diary:
    """The diary of this process."""

    def __init__(self, directory: str, name: str) -> None:
        path = Path(directory) / f"{name}.{os.getpid()}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @contextmanager
    def stint(self, job_id: str, attempt: int, task: str) -> Iterator[None]:
        """A handler's run, from the first line to the last."""
        self._write(_BEGAN, job_id, attempt, task)
        try:
            yield
        finally:
            self._write(_ENDED, job_id, attempt, task)

    def _write(self, sign: str, job_id: str, attempt: int, task: str) -> None:
        os.write(self._file, f"{sign} {time.monotonic_ns()} {job_id} {attempt} {task}\n".encode())


def read_all(directory: Path) -> list[Stint]:
    """Every stint of every process."""
    return [stint for path in sorted(directory.iterdir()) for stint in _read(path)]


def _read(path: Path) -> list[Stint]:
    # A failover that lost the first may make two of one attempt, also in one process.
    began: dict[tuple[str, int], list[tuple[int, str]]] = {}
    stints: list[Stint] = []
    for line in path.read_text().splitlines():
        sign, at_ns, job_id, attempt, task = line.split(" ")
        name = job_id, int(attempt)
        if sign == _BEGAN:
            began.setdefault(name, []).append((int(at_ns), task))
        else:
            start_ns, task = began[name].pop(0)
            stints.append(Stint(path.name, *name, task, start_ns, int(at_ns)))
    stints += (
        Stint(path.name, *name, task, at_ns, None)
        for name, unended in began.items()
        for at_ns, task in unended
    )
    return stints
