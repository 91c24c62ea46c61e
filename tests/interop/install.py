"""The real BullMQ and axe from npm, installed once.

By `python -m tests.interop.install`, or by whoever asks. Versions are pinned in
`tests/node/package-lock.json`, which names no registry. Who finds them installed needs neither
network nor npm.
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
#: Not `npm ci`: it insists on native parts for every platform, which are left out here.
_COMMAND = (
    *("npm", "install", "--no-save", "--omit=optional", "--ignore-scripts"),
    *("--prefer-offline", "--no-audit", "--no-fund"),
)
#: npm is slow where the network is.
TIMEOUT_S = 300


class NotInstalled(Exception):
    """Why there is nothing from npm to be had here."""


def ensure() -> Path:
    """The directory with all of them; raises NotInstalled. Several may ask at once."""
    if shutil.which("node") is None:
        raise NotInstalled("node is not installed")
    if not _is_current():
        with (NODE_DIR / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_current():  # somebody else may have done it meanwhile
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
    """For the Makefile: says what is missing, and fails for it only in CI."""
    try:
        ensure()
    except NotInstalled as error:
        print(f"tests with Node's BullMQ, and with axe, will be skipped: {error}", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
