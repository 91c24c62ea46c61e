"""Finds a redis-server that will do, and says how to get one where there is none."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from common.version import OLDEST_REDIS
from deploy.installer.errors import Missing, Unsuitable

USUAL_PLACES: Final = ("/usr/bin/redis-server", "/usr/local/bin/redis-server")
_VERSION = re.compile(r"v=(\d+)\.(\d+)\.(\d+)")

#: Debian 12 and newer, Ubuntu 24.04 and newer have one that will do.
PACKAGE_FIX: Final = "apt-get install redis-server"
#: Ubuntu 22.04 (JetPack 6) has 6.0.16. With USE_SYSTEMD the server tells when it is ready.
SOURCE_FIX: Final = """\
Build the current one, which takes some minutes:
    apt-get install -y build-essential libsystemd-dev curl
    curl -fsSL https://download.redis.io/redis-stable.tar.gz | tar xz
    make -C redis-stable -j2 USE_SYSTEMD=yes && make -C redis-stable install
or name another binary: install.sh install --redis-server /path/to/redis-server"""


@dataclass(frozen=True)
class RedisServer:
    """A redis-server binary, and what it can do."""

    path: Path
    version: tuple[int, int, int]
    #: Whether it can tell systemd that it is ready; a self-built one often cannot.
    notifies: bool
    #: Whether it knows vector sets; some builds and forks of that age do not.
    has_vector_sets: bool = False

    @property
    def version_text(self) -> str:
        """As it says itself."""
        return ".".join(map(str, self.version))

    def is_at_least(self, *version: int) -> bool:
        """Whether it is this new."""
        return self.version >= version


def find(named: Path | None) -> RedisServer:
    """The one that was named, else the first on the box that is new enough."""
    if named is not None:
        return _suitable(_look_at(named.absolute()))
    too_old: list[RedisServer] = []
    for candidate in _candidates():
        server = _look_at(candidate)
        if server.is_at_least(*OLDEST_REDIS):
            return server
        too_old.append(server)
    if too_old:
        return _suitable(too_old[0])
    raise Missing(
        "there is no redis-server on this box",
        f"Install one: {PACKAGE_FIX}\nOn Ubuntu 22.04 (JetPack 6) that would be 6.0.16, which is "
        f"too old. {SOURCE_FIX}",
    )


def refuse_older(server: RedisServer, wrote: str, data: Path) -> None:
    """An older Redis reads nothing of a newer one's data, and would start empty without a word."""
    if not data.is_dir() or not any(data.iterdir()):
        return
    before = tuple(int(part) for part in wrote.split(".")[:2]) if wrote else ()
    many_files = (data / "appendonlydir").is_dir() and not server.is_at_least(7)
    if before > server.version[:2] or many_files:
        raise Unsuitable(
            f"{data} was written by Redis {wrote or '7.0 or newer'}, and {server.path} is only "
            f"{server.version_text}: it would not find the jobs",
            "Name one as new with --redis-server, or move the data away to begin without it.",
        )


def _suitable(server: RedisServer) -> RedisServer:
    if server.is_at_least(*OLDEST_REDIS):
        return server
    oldest = ".".join(map(str, OLDEST_REDIS))
    raise Missing(
        f"{server.path} is Redis {server.version_text}, and {oldest} is the oldest that will do",
        SOURCE_FIX,
    )


def _candidates() -> list[Path]:
    on_path = shutil.which("redis-server")
    places = ([on_path] if on_path else []) + list(USUAL_PLACES)
    return [Path(place) for place in dict.fromkeys(places) if Path(place).exists()]


def _look_at(path: Path) -> RedisServer:
    fix = "Give the path of a redis-server program to --redis-server."
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unsuitable(f"{path} cannot be run: {error}", fix) from error
    match = _VERSION.search(done.stdout)
    if match is None:
        raise Unsuitable(f"{path} does not say that it is a Redis server", fix)
    version = int(match[1]), int(match[2]), int(match[3])
    program = path.read_bytes()
    return RedisServer(path, version, b"libsystemd.so" in program, b"\0VSIM\0" in program)
