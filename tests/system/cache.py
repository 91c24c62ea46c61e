"""What is dear to build is built once: kept outside the repository, made whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.system.cgroups import sweep


def cache_home() -> Path:
    """Where built things are kept between runs: SLUICE_CACHE, or the user's own cache."""
    chosen = os.environ.get("SLUICE_CACHE")
    home = Path(chosen) if chosen else Path.home() / ".cache" / "sluice"
    home.mkdir(parents=True, exist_ok=True)
    return home.resolve()


def say(line: str) -> None:
    """A line of progress."""
    print(f"[system tests] {line}", file=sys.stderr, flush=True)


def built_once(name: str, build: Callable[[Path], None]) -> Path:
    """The directory of this name; built by the first who asks, while all others wait."""
    home = cache_home()
    finished = home / name
    with _locked(home / f"{name}.lock"):
        if finished.exists():
            return finished
        unfinished = Path(tempfile.mkdtemp(prefix=f"{name}.part-", dir=home))
        unfinished.chmod(0o755)
        try:
            build(unfinished)
            unfinished.rename(finished)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    return finished


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_left_behind(name: str) -> bool:
    """Whether the process that a name such as `run-1234-…` speaks of is gone."""
    return not Path("/proc", name.split("-")[1]).exists()


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for this run; also sweeps those of runs that were killed."""
    home = cache_home()
    for directory in home.glob("run-*"):
        if is_left_behind(directory.name):
            shutil.rmtree(directory, ignore_errors=True)
    sweep(is_left_behind)
    own = Path(tempfile.mkdtemp(prefix=f"run-{os.getpid()}-", dir=home))
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
