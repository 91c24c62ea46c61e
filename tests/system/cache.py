"""Cache of expensive builds outside the repository; each build is complete or not there."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.system.cgroups import remove_stale


def cache_home() -> Path:
    """Directory of the cache: SLUICE_CACHE, or the user's cache directory."""
    chosen = os.environ.get("SLUICE_CACHE")
    home = Path(chosen) if chosen else Path.home() / ".cache" / "sluice"
    home.mkdir(parents=True, exist_ok=True)
    return home.resolve()


def print_progress(line: str) -> None:
    print(f"[system tests] {line}", file=sys.stderr, flush=True)


def built_once(name: str, build: Callable[[Path], None]) -> Path:
    """Returns the directory of this name. The first caller builds it while the others wait."""
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
    """True if the process in a name such as `run-1234-…` no longer exists."""
    return not Path("/proc", name.split("-")[1]).exists()


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for this run; also removes those of killed runs."""
    home = cache_home()
    for directory in home.glob("run-*"):
        if is_left_behind(directory.name):
            shutil.rmtree(directory, ignore_errors=True)
    remove_stale(is_left_behind)
    own = Path(tempfile.mkdtemp(prefix=f"run-{os.getpid()}-", dir=home))
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
