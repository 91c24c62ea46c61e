"""The embedded model: installs the engine in versioned releases, and the weights once."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from deploy.installer import units
from deploy.installer.errors import InstallError, Missing
from deploy.installer.file_steps import MakeDirectory, Symlink, WriteFile
from deploy.installer.host import Host
from deploy.installer.layout import CHECKOUT, GROUP, MODEL_UNIT, WORKER_UNITS, Layout
from deploy.installer.output import Output
from deploy.installer.releases import COMPLETE
from deploy.installer.steps import Step
from sluice.ops.model.catalogue import ENGINE, LOCK, pins

#: Names below the model's home directory.
ENGINE_LINK, MODELS = "engine", "models"
_DEPLOY = CHECKOUT / "deploy"


class ModelInstaller(Protocol):
    """Installs the engine and the weights."""

    def install(self, sluice: Path, engine: Path, models: Path) -> None:
        """Installs what is missing; raises Missing."""


@dataclass
class PipModelInstaller:
    """Runs `sluice model install` of the new release."""

    host: Host
    output: Output
    wheelhouse: Path | None

    def install(self, sluice: Path, engine: Path, models: Path) -> None:
        """Both are verified against the lock file."""
        words: list[str | Path] = [sluice, "model", "install", "--dir", models, "--engine", engine]
        if self.wheelhouse is not None:
            words += ["--wheelhouse", self.wheelhouse.absolute()]
        try:
            with self.output.reminders("installing the model"):
                self.host.run(words, "")
        except InstallError as error:
            raise Missing(error.what, "Fix that, or install without --with-model.") from error


@dataclass
class AddModel(Step):
    """Installs the engine next to older ones, and missing weights; not in use yet."""

    home: Path
    #: The `sluice` program of the new release.
    sluice: Path
    installer: ModelInstaller
    _first: bool = field(default=False, init=False)

    @property
    def _directory(self) -> Path:
        return self.home / "releases" / name()

    def pending(self) -> str | None:
        if (self._directory / COMPLETE).is_file():
            return None
        return f"install the model into {self.home} (about 300 MB)"

    def apply(self) -> None:
        self._first = not (self.home / MODELS).exists()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        try:
            self.installer.install(self.sluice, self._directory / ENGINE_LINK, self.home / MODELS)
            (self._directory / COMPLETE).touch()
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Removes the engine. Weights that existed before are kept."""
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._first:
            for created in (self.home / MODELS, self._directory.parent):
                shutil.rmtree(created, ignore_errors=True)


def name() -> str:
    """Engine version and a digest of the lock file."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    return f"{pins()[ENGINE].version}-{digest}"


def steps(host: Host, release: Path, installer: ModelInstaller) -> Iterable[Step]:
    """All steps except its unit and its user."""
    layout = host.layout
    home = layout.model_home
    concerns = (MODEL_UNIT,)
    yield MakeDirectory(host, home)
    yield AddModel(home, release / "venv" / "bin" / "sluice", installer)
    entry = (_DEPLOY / "opt" / "model.py").read_text()
    yield WriteFile(host, home / "model.py", entry, concerns=concerns)
    yield Symlink(home / ENGINE_LINK, f"releases/{name()}/{ENGINE_LINK}", concerns)
    settings = (_DEPLOY / "model.env.template").read_text()
    yield WriteFile(host, environment(layout), settings, 0o640, "root", GROUP, once=True)
    path, content = units.model_drop_in(host)
    yield WriteFile(host, path, content, concerns=(WORKER_UNITS,))


def environment(layout: Layout) -> Path:
    """Settings file of the model server, edited by the operator."""
    return layout.config / "model.env"
