"""The embedded model on a box: the engine in releases of its own, the weights beside them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from deploy.installer import units
from deploy.installer.errors import InstallError, Missing
from deploy.installer.file_steps import MakeDirectory, PointTo, WriteFile
from deploy.installer.host import Host
from deploy.installer.layout import CHECKOUT, GROUP, MODEL_UNIT, WORKER_UNITS, Layout
from deploy.installer.releases import COMPLETE
from deploy.installer.say import Say
from deploy.installer.steps import Step
from ops.model.catalogue import ENGINE, LOCK, pins

#: Links and directories below its home.
ENGINE_LINK, MODELS = "engine", "models"
_DEPLOY = CHECKOUT / "deploy"


class Maker(Protocol):
    """Fetches an engine and weights."""

    def make(self, sluice: Path, engine: Path, models: Path) -> None:
        """Do what is missing, or raise."""


@dataclass
class PipMaker:
    """The real one: `sluice model install` of the release that was just made."""

    host: Host
    say: Say
    wheelhouse: Path | None

    def make(self, sluice: Path, engine: Path, models: Path) -> None:
        """Both, checked against our lock file."""
        words: list[str | Path] = [sluice, "model", "install", "--dir", models, "--engine", engine]
        if self.wheelhouse is not None:
            words += ["--wheelhouse", self.wheelhouse.absolute()]
        try:
            with self.say.patience("installing the model"):
                self.host.run(words, "")
        except InstallError as error:
            raise Missing(error.what, "Or install without --with-model.") from error


@dataclass
class AddModel(Step):
    """An engine beside the old ones, and the weights that are missing; nobody uses it yet."""

    home: Path
    #: Of the release whose `sluice` does it.
    sluice: Path
    maker: Maker
    _first: bool = field(default=False, init=False)

    @property
    def _directory(self) -> Path:
        return self.home / "releases" / name()

    def pending(self) -> str | None:
        """It is not there, or only half."""
        if (self._directory / COMPLETE).is_file():
            return None
        return f"install the model into {self.home} (about 300 MB)"

    def apply(self) -> None:
        """Make it whole."""
        self._first = not (self.home / MODELS).exists()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        try:
            self.maker.make(self.sluice, self._directory / ENGINE_LINK, self.home / MODELS)
            (self._directory / COMPLETE).touch()
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Remove it again; weights that were there before stay."""
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._first:
            for made in (self.home / MODELS, self._directory.parent):
                shutil.rmtree(made, ignore_errors=True)


def name() -> str:
    """Version of the engine, and a digest of everything that is pinned."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    return f"{pins()[ENGINE].version}-{digest}"


def steps(host: Host, release: Path, maker: Maker) -> Iterable[Step]:
    """Everything but its unit and its user."""
    layout = host.layout
    home = layout.model_home
    concerns = (MODEL_UNIT,)
    yield MakeDirectory(host, home)
    yield AddModel(home, release / "venv" / "bin" / "sluice", maker)
    entry = (_DEPLOY / "opt" / "model.py").read_text()
    yield WriteFile(host, home / "model.py", entry, concerns=concerns)
    yield PointTo(home / ENGINE_LINK, f"releases/{name()}/{ENGINE_LINK}", concerns)
    settings = (_DEPLOY / "model.env.template").read_text()
    yield WriteFile(host, environment(layout), settings, 0o640, "root", GROUP, once=True)
    path, content = units.model_drop_in(host)
    yield WriteFile(host, path, content, concerns=(WORKER_UNITS,))


def environment(layout: Layout) -> Path:
    """The operator's settings of the model server."""
    return layout.config / "model.env"
