"""Installs npm packages, once: BullMQ and axe, or those of another directory.

Run by `python -m tests.interop.install`, or on first use. Versions are pinned in
`package-lock.json`, which contains no registry. If they are installed, neither network nor npm is
needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

NODE_DIR = Path(__file__).parents[1] / "node"
MODULES = NODE_DIR / "node_modules"
#: Not `npm ci`: it requires native packages for every platform, which are omitted here.
_COMMAND = (
    *("npm", "install", "--no-save", "--omit=optional", "--ignore-scripts"),
    *("--prefer-offline", "--no-audit", "--no-fund"),
)
#: npm takes long on a slow network.
TIMEOUT_S = 300


class NotInstalled(Exception):
    """Why the npm packages are not available."""


def ensure(directory: Path = NODE_DIR) -> Path:
    """Install the packages of a directory; returns its `node_modules`, or raises NotInstalled.

    Several processes may call it at once.
    """
    if shutil.which("node") is None:
        raise NotInstalled("node is not installed")
    if not _is_current(directory):
        with (directory / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_current(directory):  # another process may have installed them meanwhile
                _install(directory)
    return directory / "node_modules"


def _stamp(directory: Path) -> Path:
    return directory / "node_modules" / ".sluice"


def _is_current(directory: Path) -> bool:
    stamp = _stamp(directory)
    return stamp.is_file() and stamp.read_text() == _wanted(directory)


def _wanted(directory: Path) -> str:
    return hashlib.sha256((directory / "package-lock.json").read_bytes()).hexdigest()


def _install(directory: Path) -> None:
    if shutil.which("npm") is None:
        raise NotInstalled(f"npm is not installed, and {directory}/node_modules is not there")
    try:
        done = subprocess.run(
            _COMMAND, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"npm install took longer than {TIMEOUT_S} s") from None
    if done.returncode:
        raise NotInstalled(f"npm install failed: {done.stderr.strip()[-500:]}")
    _stamp(directory).write_text(_wanted(directory))


def main() -> int:
    """For the Makefile: prints what is missing, and fails only in CI."""
    try:
        ensure()
    except NotInstalled as error:
        print(f"tests with Node's BullMQ, and with axe, will be skipped: {error}", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
