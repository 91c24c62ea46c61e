"""An aarch64 Debian in which commands run, with the network of the host."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.aarch64 import host_settings
from tests.aarch64.emulation import isolated
from tests.system.cache import built_once, cache_home
from tests.system.rootfs import SUITE, debootstrap

PACKAGES = (
    *("python3", "python3-venv", "make", "git", "curl", "redis-server", "ca-certificates"),
    "libgomp1",  # for the model
)
#: The checkout inside.
PROJECT = "/srv/sluice"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def base_tree() -> Path:
    """The Debian tree; takes some minutes the first time."""
    recipe = "\n".join((SUITE, "arm64", *PACKAGES))
    fingerprint = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    return built_once(f"rootfs-arm64-{SUITE}-{fingerprint}", _build)


def _build(tree: Path) -> None:
    debootstrap(tree, PACKAGES, prefix=isolated([]), architecture="arm64")


class CommandFailed(Exception):
    """A command inside exited with an error."""


class Chroot:
    """A writable tree over read-only layers. Mounts exist only while a command runs."""

    def __init__(self, layers: tuple[Path, ...], directory: Path) -> None:
        self._layers = layers
        self._work, self._root = directory / "work", directory / "root"
        #: What commands have written.
        self.upper = directory / "upper"
        for part in (self.upper, self._work, self._root):
            part.mkdir(parents=True, mode=0o755)
        settings = host_settings.pip_settings()
        self._variables = host_settings.network_variables()
        values = [value for section in settings.values() for value in section.values()]
        self._shared = sorted(host_settings.paths_of([*values, *self._variables.values()]))
        self._pip = directory / "pip.conf"
        host_settings.write_pip_settings(self._pip, settings)
        #: Downloads are kept for the next lock file, and for the next try after an error.
        self._pip_cache = cache_home() / "pip-arm64"
        self._pip_cache.mkdir(exist_ok=True)

    def run(self, command: str, *, timeout_s: float) -> None:
        """Runs a shell command in the checkout; its output goes to this process's."""
        try:
            done = subprocess.run(
                isolated(["sh", "-c", self._script(command)]),
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as expired:
            raise CommandFailed(f"{command}: did not end within {timeout_s:.0f} s") from expired
        if done.returncode != 0:
            raise CommandFailed(f"{command}: exit code {done.returncode}")

    def _script(self, command: str) -> str:
        below = ":".join(map(str, self._layers))
        options = f"lowerdir={below},upperdir={self.upper},workdir={self._work}"
        steps = [
            ["mount", "-t", "overlay", "overlay", "-o", options, str(self._root)],
            ["mount", "-t", "proc", "proc", f"{self._root}/proc"],
            ["mount", "--rbind", "/dev", f"{self._root}/dev"],
        ]
        binds = {
            host_settings.RESOLVER: host_settings.RESOLVER,
            self._pip: Path("/etc/pip.conf"),
            self._pip_cache: Path("/root/.cache/pip"),
        }
        binds.update({path: path for path in self._shared})
        for source, target in binds.items():
            inside = f"{self._root}{target}"
            steps.append(["mkdir", "-p", os.path.dirname(inside)])
            steps.append(["mkdir", "-p", inside] if source.is_dir() else ["touch", inside])
            steps.append(["mount", "--bind", str(source), inside])
        variables = {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", **self._variables}
        if "CI" in os.environ:
            variables["CI"] = os.environ["CI"]
        words = [f"{name}={value}" for name, value in variables.items()]
        inner = f"cd {PROJECT} && {command}"
        run = ["chroot", str(self._root), "/usr/bin/env", "-i", *words, "bash", "-c", inner]
        return " && ".join(map(shlex.join, steps)) + f" && exec {shlex.join(run)}"
