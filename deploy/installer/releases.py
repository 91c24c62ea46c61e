"""Releases: one directory each; the link `venv` points to the active one."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from deploy.installer.errors import InstallError, Missing
from deploy.installer.host import Host
from deploy.installer.output import Output
from deploy.installer.sources import DISTRIBUTION, Sources
from deploy.installer.steps import Step

#: The active release and the previous one.
KEPT = 2
#: Marker file, written last: a release without it is incomplete.
COMPLETE = ".complete"


class Builder(Protocol):
    """Creates a virtual environment with all packages."""

    def build(self, venv: Path) -> None: ...


class NoBuilder:
    """Placeholder for operations that install no release."""

    def build(self, venv: Path) -> None: ...


@dataclass
class PipBuilder:
    """Builds with venv and pip."""

    host: Host
    output: Output
    sources: Sources
    python: Path
    _scratch: Path | None = field(default=None, init=False)

    def build(self, venv: Path) -> None:
        with self.output.reminders(f"creating {venv}"):
            self._create(venv)
        with self.output.reminders("installing the packages of deploy/requirements.lock"):
            self._install(venv, self.sources.lock)
        with self.output.reminders("installing the sluice package"):
            self._pip(venv, "install", "--no-deps", "--no-index", str(self._own_wheel()))

    def _create(self, venv: Path) -> None:
        try:
            self.host.run([self.python, "-m", "venv", venv], "")
        except InstallError as error:
            raise Missing(
                f"{self.python} cannot create a virtual environment: {error.what}",
                "Install the package: apt-get install python3-venv",
            ) from error

    def _install(self, venv: Path, lock: Path) -> None:
        """Installs exactly the wheels of a lock file. A source package would run code that has no
        hash, to build it."""
        self._pip(venv, "install", "--require-hashes", "--only-binary", ":all:", "-r", str(lock))

    def _own_wheel(self) -> Path:
        """The sluice wheel, built in a virtual environment with the packages of build.lock."""
        wheel = self.sources.wheel
        if wheel is not None:
            return wheel
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="sluice-wheel-"))
            builder = self._scratch / "venv"
            self._create(builder)
            self._install(builder, self.sources.build_lock)
            # Only reads the checkout, which may belong to another user.
            options = ("--no-build-isolation", "--no-deps", "--no-index", "-w", str(self._scratch))
            self._pip(builder, "wheel", *options, str(self.sources.checkout))
        return next(self._scratch.glob(f"{DISTRIBUTION}-*.whl"))

    def _pip(self, venv: Path, command: str, *words: str) -> None:
        if self.sources.wheelhouse is None:
            where: list[str] = []
            fix = "Check the internet connection, or use --wheelhouse (see `make wheelhouse`)."
        else:
            where = ["--no-index", "--find-links", str(self.sources.wheelhouse.absolute())]
            fix = (
                "Build the wheelhouse for this platform and Python: `make wheelhouse "
                f"PLATFORM={os.uname().machine} PYTHON_VERSION=3.x` in the same checkout."
            )
        python = venv / "bin" / "python"
        options = ["--quiet", "--disable-pip-version-check", "--no-input", *where]
        self.host.run([python, "-m", "pip", command, *options, *words], fix)

    def close(self) -> None:
        """Removes the temporary wheel and what built it."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


@dataclass
class AddRelease(Step):
    """Installs a release next to the existing ones; not in use yet."""

    home: Path
    name: str
    builder: Builder

    @property
    def _directory(self) -> Path:
        return self.home / "releases" / self.name

    def pending(self) -> str | None:
        if (self._directory / COMPLETE).is_file():
            return None
        return f"install release {self.name} into {self._directory} (about a minute)"

    def apply(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        try:
            self.builder.build(self._directory / "venv")
            (self._directory / COMPLETE).touch()
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def target_of(name: str) -> str:
    """Target of the link `venv` for a release."""
    return f"releases/{name}/venv"


def current(home: Path, name: str = "venv") -> str | None:
    """Name of the active release: the target of the link."""
    link = home / name
    return Path(os.readlink(link)).parts[-2] if link.is_symlink() else None


def obsolete(home: Path, name: str = "venv") -> list[Path]:
    """Releases to remove: all but the active one and the newest other one."""
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
    shutil.rmtree(release, ignore_errors=True)
