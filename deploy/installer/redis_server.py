"""Finds a suitable redis-server, or explains how to install one."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from common.version import OLDEST_REDIS
from deploy.installer.errors import Missing, Unsuitable

DEFAULT_PATHS: Final = ("/usr/bin/redis-server", "/usr/local/bin/redis-server")
_VERSION = re.compile(r"v=(\d+)\.(\d+)\.(\d+)")

#: Debian 12 and Ubuntu 24.04, or newer, have a suitable version.
PACKAGE_FIX: Final = "apt-get install redis-server"
#: Ubuntu 22.04 (JetPack 6) has 6.0.16. With USE_SYSTEMD the server notifies systemd when it is
#: ready.
SOURCE_FIX: Final = """\
Build the current version, which takes some minutes:
    apt-get install -y build-essential libsystemd-dev curl
    curl -fsSL https://download.redis.io/redis-stable.tar.gz | tar xz
    make -C redis-stable -j2 USE_SYSTEMD=yes && make -C redis-stable install
or use another binary: install.sh install --redis-server /path/to/redis-server"""


@dataclass(frozen=True)
class RedisServer:
    """A redis-server binary, its version and its capabilities."""

    path: Path
    version: tuple[int, int, int]
    #: Whether it can notify systemd; self-built binaries often cannot.
    notifies: bool
    #: Whether it has vector sets; some builds and forks of that version lack them.
    has_vector_sets: bool = False

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    def is_at_least(self, *version: int) -> bool:
        return self.version >= version


def find(named: Path | None) -> RedisServer:
    """Returns the named server, or the first installed one that is new enough; raises Missing."""
    if named is not None:
        return _suitable(_inspect(named.absolute()))
    too_old: list[RedisServer] = []
    for candidate in _candidates():
        server = _inspect(candidate)
        if server.is_at_least(*OLDEST_REDIS):
            return server
        too_old.append(server)
    if too_old:
        return _suitable(too_old[0])
    raise Missing(
        "no redis-server found on this host",
        f"Install one: {PACKAGE_FIX}\nOn Ubuntu 22.04 (JetPack 6) the package is 6.0.16, which is "
        f"too old. {SOURCE_FIX}",
    )


def refuse_older(server: RedisServer, written_by: str, data: Path) -> None:
    """Raises Unsuitable for data of a newer Redis: an older one would silently start empty."""
    if not data.is_dir() or not any(data.iterdir()):
        return
    before = tuple(int(part) for part in written_by.split(".")[:2]) if written_by else ()
    many_files = (data / "appendonlydir").is_dir() and not server.is_at_least(7)
    if before > server.version[:2] or many_files:
        raise Unsuitable(
            f"{data} was written by Redis {written_by or '7.0 or newer'}, but {server.path} is "
            f"{server.version_text} and cannot read it",
            "Use --redis-server with a newer Redis, or move the data away to start without it.",
        )


def _suitable(server: RedisServer) -> RedisServer:
    if server.is_at_least(*OLDEST_REDIS):
        return server
    oldest = ".".join(map(str, OLDEST_REDIS))
    raise Missing(
        f"{server.path} is Redis {server.version_text}; {oldest} or newer is required",
        SOURCE_FIX,
    )


def _candidates() -> list[Path]:
    on_path = shutil.which("redis-server")
    paths = ([on_path] if on_path else []) + list(DEFAULT_PATHS)
    return [Path(path) for path in dict.fromkeys(paths) if Path(path).exists()]


def _inspect(path: Path) -> RedisServer:
    fix = "Pass the path of a redis-server program to --redis-server."
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unsuitable(f"cannot run {path}: {error}", fix) from error
    match = _VERSION.search(done.stdout)
    if match is None:
        raise Unsuitable(f"{path} is not a Redis server", fix)
    version = int(match[1]), int(match[2]), int(match[3])
    program = path.read_bytes()
    return RedisServer(path, version, b"libsystemd.so" in program, b"\0VSIM\0" in program)
