"""Installs BullMQ and axe from npm, once.

Run by `python -m tests.interop.install`, or on first use. Versions are pinned in
`tests/node/package-lock.json`, which contains no registry. If they are installed, neither network
nor npm is needed.
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
_STAMP = MODULES / ".sluice"
#: Not `npm ci`: it requires native packages for every platform, which are omitted here.
_COMMAND = (
    *("npm", "install", "--no-save", "--omit=optional", "--ignore-scripts"),
    *("--prefer-offline", "--no-audit", "--no-fund"),
)
#: npm takes long on a slow network.
TIMEOUT_S = 300


class NotInstalled(Exception):
    """Why the npm packages are not available."""


def ensure() -> Path:
    """Returns their directory; raises NotInstalled. Several processes may call it at once."""
    if shutil.which("node") is None:
        raise NotInstalled("node is not installed")
    if not _is_current():
        with (NODE_DIR / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_current():  # another process may have installed them meanwhile
                _install()
    return MODULES


def _is_current() -> bool:
    return _STAMP.is_file() and _STAMP.read_text() == _wanted()


def _wanted() -> str:
    return hashlib.sha256((NODE_DIR / "package-lock.json").read_bytes()).hexdigest()


def _install() -> None:
    if shutil.which("npm") is None:
        raise NotInstalled("npm is not installed, and tests/node/node_modules is not there")
    try:
        done = subprocess.run(
            _COMMAND, cwd=NODE_DIR, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"npm install took longer than {TIMEOUT_S} s") from None
    if done.returncode:
        raise NotInstalled(f"npm install failed: {done.stderr.strip()[-500:]}")
    _STAMP.write_text(_wanted())


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
