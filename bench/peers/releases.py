"""Releases of the compared systems, read from the lock files."""

from __future__ import annotations

import json
import re
from pathlib import Path

from bench.peers.field import NODE, NODE_RELEASE, SLUICE, SLUICE_HTTP
from sluice.common.version import VERSION
from tests.interop import install

_LOCKS = Path(__file__).with_name("requirements")
_PINNED = re.compile(r"^([a-z0-9-]+)==(\S+?)(?: ;.*?)? \\$", re.MULTILINE)
#: Lock file and packages of each system.
_PACKAGES = {
    "bullmq-python": ("field", "bullmq"),
    "saq": ("saq", "saq"),
    "taskiq": ("field", "taskiq", "taskiq-redis"),
    "arq": ("arq", "arq"),
    "streaq": ("field", "streaq"),
    "dramatiq": ("field", "dramatiq"),
    "celery-prefork": ("field", "celery"),
    "celery-threads": ("field", "celery"),
    "rq": ("field", "rq"),
}


def releases() -> dict[str, str]:
    found = {SLUICE: VERSION, SLUICE_HTTP: VERSION, NODE: _node()}
    for key, (lock, *packages) in _PACKAGES.items():
        pins = pinned((_LOCKS / f"{lock}.lock").read_text())
        found[key] = ", ".join(pins[package] for package in packages)
    return found


def pinned(lock: str) -> dict[str, str]:
    """Versions in a lock file; if they differ by Python version, the last one."""
    return dict(_PINNED.findall(lock))


def _node() -> str:
    package = json.loads((install.NODE_DIR / "package.json").read_text())
    return str(package["dependencies"][NODE_RELEASE]).rpartition("@")[2]
