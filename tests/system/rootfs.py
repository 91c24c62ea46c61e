"""The base tree: a small Debian with systemd, Python and Redis, as an operator would have it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.system.cache import built_once, print_progress

SUITE = "bookworm"
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "python3",
    "python3-venv",
    "ca-certificates",
    "procps",
    "curl",
    "redis-server",
    "libgomp1",  # for the model
)
TOOLS = {
    "systemd-nspawn": "systemd-container",
    "debootstrap": "debootstrap",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}


def what_is_missing() -> str | None:
    """Why this host cannot boot a machine; None if it can."""
    if os.geteuid() != 0:
        return "booting a systemd needs root"
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"{tool} is not installed: apt-get install {package}"
    return None


def base_tree() -> Path:
    """The tree that every machine starts from; takes some minutes the first time."""
    recipe = "\n".join((SUITE, *PACKAGES))
    fingerprint = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    return built_once(f"rootfs-{SUITE}-{fingerprint}", _build)


def python_version(tree: Path) -> str:
    """Python version of the tree, such as 3.11; wheels are selected for it."""
    result = subprocess.run(
        ["chroot", tree, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        check=True,
        capture_output=True,
        text=True,
    )
    return result.stdout.strip()


def _build(tree: Path) -> None:
    print_progress(f"building a {SUITE} tree with debootstrap (about two minutes, once)")
    debootstrap(tree, PACKAGES)


def debootstrap(
    tree: Path, packages: Sequence[str], *, prefix: Sequence[str] = (), architecture: str = ""
) -> None:
    """Installs a minimal Debian with these packages; `prefix` is a command that runs it."""
    command = [*prefix, "debootstrap", "--variant=minbase", f"--include={','.join(packages)}"]
    if architecture:
        command.append(f"--arch={architecture}")
    process = subprocess.Popen(
        [*command, SUITE, str(tree)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    last_lines: list[str] = []
    for count, raw in enumerate(process.stdout):
        line = raw.decode(errors="replace").strip()
        last_lines = [*last_lines[-19:], line]
        if count % 50 == 0:
            print_progress(line)
    if process.wait() != 0:
        raise RuntimeError("debootstrap failed:\n" + "\n".join(last_lines))
    # Every machine is a copy: remove files that only apt needs.
    for leftover in ("var/cache/apt/archives", "var/lib/apt/lists"):
        shutil.rmtree(tree / leftover, ignore_errors=True)
    print_progress("the tree is ready")
