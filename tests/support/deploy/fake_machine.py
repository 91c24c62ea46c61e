"""A machine below a directory, with a fake builder, a fake systemd and a fake health check."""

from __future__ import annotations

import io
import stat
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path

from deploy.installer import cli
from deploy.installer.credentials import Credentials
from deploy.installer.errors import InstallError, Missing, Unhealthy
from deploy.installer.host import Host
from deploy.installer.install import Context
from deploy.installer.layout import Layout
from deploy.installer.manifest import Manifest
from deploy.installer.output import Output
from deploy.installer.sources import Sources
from deploy.installer.units import Systemd
from sluice.common.version import REDIS

FIRST_RELEASE = "0.1.0-first"


@dataclass(frozen=True)
class NamedSources(Sources):
    """Sources with a fixed release name."""

    name: str = FIRST_RELEASE

    def release_name(self, python: Path) -> str:
        return self.name


@dataclass
class FakeBuilder:
    """Builds immediately, or fails halfway."""

    fails: bool = False

    def build(self, venv: Path) -> None:
        (venv / "bin").mkdir(parents=True)
        if self.fails:
            raise InstallError("pip failed", "Check the internet.")
        (venv / "bin" / "python").write_text("")


@dataclass
class FakeModelInstaller:
    """Installs immediately, or fails halfway."""

    fails: bool = False

    def install(self, sluice: Path, engine: Path, models: Path) -> None:
        engine.mkdir(parents=True)
        models.mkdir(exist_ok=True)
        if self.fails:
            raise Missing("pip failed", "Check the internet.")
        (models / "weights.gguf").write_text("")


class FakeSystemd(Systemd):
    """Records systemctl commands and tracks active and enabled units."""

    def __init__(self, host: Host, has_systemd: bool) -> None:
        super().__init__(host)
        self._has_systemd = has_systemd
        self.commands: list[str] = []
        self.active: set[str] = set()
        self.enabled: set[str] = set()

    @property
    def is_available(self) -> bool:
        return self._has_systemd

    def is_active(self, unit: str) -> bool:
        return unit in self.active

    def is_enabled(self, unit: str) -> bool:
        return unit in self.enabled

    def workers(self) -> list[str]:
        return sorted(unit for unit in self.active if unit.startswith("redis-worker@"))

    def _systemctl(self, verb: str, *units: str) -> None:
        self.commands.append(" ".join([verb, *units]))
        if verb == "enable":
            self.enabled.update(units)
        elif verb == "disable":
            self.enabled.difference_update(units)
        elif verb in ("start", "restart"):
            self.active.update(units)
        elif verb == "stop":
            self.active.difference_update(units)


@dataclass
class FakeHealth:
    """Healthy unless the active release has "broken" in its name."""

    layout: Layout

    def check(self, timeout_s: float) -> None:
        if "broken" in (self.layout.gateway_home / "venv").resolve().parent.name:
            raise Unhealthy("/readyz returned 503", "See the journal.")


@dataclass
class FakeMachine:
    """A machine below `root`; `run` calls the command line."""

    root: Path
    has_systemd: bool = True
    release: str = FIRST_RELEASE
    builder: FakeBuilder = field(default_factory=FakeBuilder)
    model_installer: FakeModelInstaller = field(default_factory=FakeModelInstaller)
    output: str = ""
    error: str = ""

    def __post_init__(self) -> None:
        self.layout = Layout(self.root)
        self.host = Host(self.layout)
        self.systemd = FakeSystemd(self.host, self.has_systemd)

    def run(self, *words: str | Path) -> int:
        """Returns the exit code; the text is in `output`, the error message in `error`."""
        stream, errors = io.StringIO(), io.StringIO()
        ctx = Context(
            *(self.host, Output(stream), self.systemd, NamedSources(name=self.release)),
            *(self.builder, self._health, self.model_installer),
        )
        try:
            with redirect_stderr(errors):
                return cli.main([*map(str, words), "--root", str(self.root)], ctx)
        finally:
            self.output, self.error = stream.getvalue(), errors.getvalue()

    def install(self, *words: str | Path) -> int:
        return self.run("install", *words)

    def upgrade(self, release: str) -> int:
        self.release = release
        return self.run("upgrade")

    def _health(self, manifest: Manifest, credentials: Credentials) -> FakeHealth:
        return FakeHealth(self.layout)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Checks that the block neither changes a file nor leaves another unit running."""
        before = self.tree(), set(self.systemd.active), set(self.systemd.enabled)
        yield
        assert (self.tree(), self.systemd.active, self.systemd.enabled) == before

    def tree(self) -> dict[str, tuple[int, str]]:
        found = {}
        for path in sorted(self.root.rglob("*")):
            mode = stat.S_IMODE(path.lstat().st_mode)
            content = f"-> {path.readlink()}" if path.is_symlink() else ""
            if path.is_file() and not path.is_symlink():
                content = path.read_text()
            found[str(path.relative_to(self.root))] = (mode, content)
        return found

    def mode(self, path: str) -> int:
        return stat.S_IMODE(self.layout.at(path).lstat().st_mode)


def fake_redis(path: Path, version: str, *, notifies: bool = True, product: str = REDIS) -> Path:
    """A script that prints a version like redis-server and does nothing else."""
    library = "# libsystemd.so.0" if notifies else "#"
    path.write_text(f'#!/bin/sh\n{library}\necho "{product} server v={version} sha=0 bits=64"\n')
    path.chmod(0o755)
    return path
