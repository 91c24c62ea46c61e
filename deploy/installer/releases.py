"""Releases: each in a directory of its own, the one in use behind the link `venv`."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from deploy.installer.errors import InstallError, Missing
from deploy.installer.host import Host
from deploy.installer.say import Say
from deploy.installer.sources import DISTRIBUTION, Sources
from deploy.installer.steps import Step

#: The one in use, and the one before it.
KEPT = 2
#: Written last: a release without it is half a release.
COMPLETE = ".complete"


class Builder(Protocol):
    """Makes a virtual environment with everything in it."""

    def build(self, venv: Path) -> None:
        """Make it, or raise."""


class Nothing:
    """For those who want none."""

    def build(self, venv: Path) -> None:
        """Never asked for."""


@dataclass
class PipBuilder:
    """The real one."""

    host: Host
    say: Say
    sources: Sources
    python: Path
    _wheels: Path | None = field(default=None, init=False)

    def build(self, venv: Path) -> None:
        """`python -m venv`, the lock file's packages, our own wheel."""
        with self.say.patience(f"making {venv}"):
            self._make(venv)
        with self.say.patience("installing the packages of deploy/requirements.lock"):
            self._pip(venv, "install", "--require-hashes", "-r", str(self.sources.lock))
        with self.say.patience("installing our own package"):
            self._pip(venv, "install", "--no-deps", "--no-index", str(self._own_wheel(venv)))

    def _make(self, venv: Path) -> None:
        try:
            self.host.run([self.python, "-m", "venv", venv], "")
        except InstallError as error:
            raise Missing(
                f"{self.python} cannot make a virtual environment: {error.what}",
                "Install what it needs: apt-get install python3-venv",
            ) from error

    def _own_wheel(self, venv: Path) -> Path:
        wheel = self.sources.wheel
        if wheel is not None:
            return wheel
        if self._wheels is None:
            self._wheels = Path(tempfile.mkdtemp(prefix="sluice-wheel-"))
            # Out of the checkout nothing but reading is done: it may belong to somebody else.
            self._pip(
                *(venv, "wheel", "--no-deps", "-w", str(self._wheels)), str(self.sources.checkout)
            )
        return next(self._wheels.glob(f"{DISTRIBUTION}-*.whl"))

    def _pip(self, venv: Path, command: str, *words: str) -> None:
        if self.sources.wheelhouse is None:
            where: list[str] = []
            fix = "Is there a way to the internet? Without one: --wheelhouse (`make wheelhouse`)."
        else:
            where = ["--no-index", "--find-links", str(self.sources.wheelhouse.absolute())]
            fix = (
                "The wheelhouse must be made for this machine and Python: `make wheelhouse "
                f"PLATFORM={os.uname().machine} PYTHON_VERSION=3.x` of the same checkout."
            )
        python = venv / "bin" / "python"
        options = ["--quiet", "--disable-pip-version-check", "--no-input", *where]
        self.host.run([python, "-m", "pip", command, *options, *words], fix)

    def close(self) -> None:
        """Throw away what was built on the way."""
        if self._wheels is not None:
            shutil.rmtree(self._wheels, ignore_errors=True)


@dataclass
class AddRelease(Step):
    """A new release beside the old ones; nobody uses it yet."""

    home: Path
    name: str
    builder: Builder

    @property
    def _directory(self) -> Path:
        return self.home / "releases" / self.name

    def pending(self) -> str | None:
        """It is not there, or only half."""
        if (self._directory / COMPLETE).is_file():
            return None
        return f"install release {self.name} into {self._directory} (about a minute)"

    def apply(self) -> None:
        """Build it whole."""
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        try:
            self.builder.build(self._directory / "venv")
            (self._directory / COMPLETE).touch()
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Remove it again."""
        shutil.rmtree(self._directory, ignore_errors=True)


def target_of(name: str) -> str:
    """Where the link `venv` points for a release."""
    return f"releases/{name}/venv"


def current(home: Path, name: str = "venv") -> str | None:
    """The release in use: where the link of this name points."""
    link = home / name
    return Path(os.readlink(link)).parts[-2] if link.is_symlink() else None


def superfluous(home: Path, name: str = "venv") -> list[Path]:
    """Releases that are neither in use nor among the newest."""
    releases = home / "releases"
    if not releases.is_dir():
        return []
    in_use = current(home, name)
    others = sorted(
        (path for path in releases.iterdir() if path.name != in_use),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    return others[KEPT - 1 :] if in_use is not None else []


def remove(release: Path) -> None:
    """An old release, for good."""
    shutil.rmtree(release, ignore_errors=True)
