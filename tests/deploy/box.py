"""A box below a directory: installer, releases and systemd with nothing real behind them."""

from __future__ import annotations

import io
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deploy.installer import cli
from deploy.installer.credentials import Credentials
from deploy.installer.errors import InstallError, Missing, Unhealthy
from deploy.installer.host import Host
from deploy.installer.install import Workshop
from deploy.installer.layout import Layout
from deploy.installer.manifest import Manifest
from deploy.installer.say import Say
from deploy.installer.sources import Sources
from deploy.installer.units import Systemd


class NamedSources(Sources):
    """A release of any name."""

    name = "0.1.0-first"

    def release_name(self, python: Path) -> str:
        return self.name


@dataclass
class FakeBuilder:
    """Builds at once, or fails half-way."""

    fails: bool = False

    def build(self, venv: Path) -> None:
        (venv / "bin").mkdir(parents=True)
        if self.fails:
            raise InstallError("pip failed", "Look at the internet.")
        (venv / "bin" / "python").write_text("")


@dataclass
class FakeMaker:
    """Fetches at once, or fails half-way."""

    fails: bool = False

    def make(self, sluice: Path, engine: Path, models: Path) -> None:
        engine.mkdir(parents=True)
        models.mkdir(exist_ok=True)
        if self.fails:
            raise Missing("pip failed", "Look at the internet.")
        (models / "weights.gguf").write_text("")


class FakeSystemd(Systemd):
    """Does what it is told in its head, and writes it down."""

    def __init__(self, host: Host, there: bool) -> None:
        super().__init__(host)
        self._there = there
        self.told: list[str] = []
        self.active: set[str] = set()
        self.enabled: set[str] = set()

    @property
    def is_there(self) -> bool:
        return self._there

    def is_active(self, unit: str) -> bool:
        return unit in self.active

    def is_enabled(self, unit: str) -> bool:
        return unit in self.enabled

    def workers(self) -> list[str]:
        return sorted(unit for unit in self.active if unit.startswith("redis-worker@"))

    def _do(self, verb: str, *units: str) -> None:
        self.told.append(" ".join([verb, *units]))
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
    """Well, unless the release in use is a broken one."""

    layout: Layout

    def check(self, timeout_s: float) -> None:
        if "broken" in (self.layout.gateway_home / "venv").resolve().parent.name:
            raise Unhealthy("/readyz answers 503", "See the journal.")


@dataclass
class Box:
    """One box; `run` is the command line."""

    root: Path
    there: bool = True
    builder: FakeBuilder = field(default_factory=FakeBuilder)
    maker: FakeMaker = field(default_factory=FakeMaker)
    output: str = ""

    def __post_init__(self) -> None:
        self.layout = Layout(self.root)
        self.host = Host(self.layout)
        self.systemd = FakeSystemd(self.host, self.there)
        self.sources = NamedSources()

    def run(self, *words: str | Path) -> int:
        """Exit code; what was said is in `output`."""
        stream = io.StringIO()
        shop = Workshop(
            *(self.host, Say(stream), self.systemd, self.sources),
            *(self.builder, self._health, self.maker),
        )
        try:
            return cli.main([*map(str, words), "--root", str(self.root)], shop)
        finally:
            self.output = stream.getvalue()

    def install(self, *words: str | Path) -> int:
        return self.run("install", *words)

    def _health(self, manifest: Manifest, credentials: Credentials) -> FakeHealth:
        return FakeHealth(self.layout)

    @contextmanager
    def release(self, name: str) -> Iterator[None]:
        """Another checkout, while the block lasts."""
        before, NamedSources.name = NamedSources.name, name
        try:
            yield
        finally:
            NamedSources.name = before

    def tree(self) -> dict[str, tuple[int, str]]:
        """Every file and link with its mode and content."""
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


def fake_redis(path: Path, version: str, *, notifies: bool = True) -> Path:
    """A program that says what a redis-server says, and can do nothing else."""
    library = "# libsystemd.so.0" if notifies else "#"
    path.write_text(f'#!/bin/sh\n{library}\necho "Redis server v={version} sha=0 bits=64"\n')
    path.chmod(0o755)
    return path
