"""Finds a suitable redis-server or valkey-server, or explains how to install one."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.installer.errors import Missing, Unsuitable
from sluice.common.version import OLDEST_REDIS, REDIS, SERVER_PROGRAMS, ServerVersion, parse_banner

DEFAULT_PATHS: Final = tuple(
    f"{directory}/{program}"
    for program in SERVER_PROGRAMS
    for directory in ("/usr/bin", "/usr/local/bin")
)

#: Debian 12 and Ubuntu 24.04, or newer, have a suitable version.
PACKAGE_FIX: Final = "apt-get install redis-server (or valkey-server)"
#: Ubuntu 22.04 (JetPack 6) has 6.0.16. With USE_SYSTEMD the server notifies systemd when it is
#: ready.
SOURCE_FIX: Final = """\
Build the current version, which takes some minutes:
    apt-get install -y build-essential libsystemd-dev curl
    curl -fsSL https://download.redis.io/redis-stable.tar.gz | tar xz
    make -C redis-stable -j2 USE_SYSTEMD=yes && make -C redis-stable install
or use another binary, also a valkey-server: install.sh install --redis-server /path/to/it"""


@dataclass(frozen=True)
class RedisServer:
    """A redis-server or valkey-server binary, its version and its capabilities."""

    path: Path
    #: Of the product. All versions of Valkey have what Redis 7.2 has.
    version: tuple[int, ...]
    #: Whether it can notify systemd; self-built binaries often cannot.
    notifies: bool
    #: Whether it has vector sets; some builds and forks of that version lack them.
    has_vector_sets: bool = False
    product: str = REDIS

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def release(self) -> ServerVersion:
        """Product and version, such as Valkey 9.1.0."""
        return ServerVersion(self.product, self.version)

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
        f"no {' or '.join(SERVER_PROGRAMS)} found on this host",
        f"Install one: {PACKAGE_FIX}\nOn Ubuntu 22.04 (JetPack 6) the package is 6.0.16, which is "
        f"too old. {SOURCE_FIX}",
    )


def refuse_unreadable(server: RedisServer, written_by: ServerVersion | None, data: Path) -> None:
    """Raises Unsuitable for data that the server cannot read: an older Redis would silently start
    empty. `written_by` is None if it is not known."""
    if not data.is_dir() or not any(data.iterdir()):
        return
    many_files = (data / "appendonlydir").is_dir() and not server.is_at_least(7)
    if many_files or (written_by is not None and not server.release.can_read(written_by)):
        same = written_by is None or written_by.product == server.product
        product = server.product if written_by is None else written_by.product
        raise Unsuitable(
            f"{data} was written by {written_by or 'Redis 7.0 or newer'}, but {server.path} is "
            f"{server.release} and cannot read it",
            f"Use --redis-server with {f'a newer {product}' if same else product}, or move the "
            "data away to start without it.",
        )


def _suitable(server: RedisServer) -> RedisServer:
    if server.is_at_least(*OLDEST_REDIS):
        return server
    oldest = ".".join(map(str, OLDEST_REDIS))
    raise Missing(
        f"{server.path} is {server.release}; {oldest} or newer is required",
        SOURCE_FIX,
    )


def _candidates() -> list[Path]:
    found: list[str | None] = []
    for program in SERVER_PROGRAMS:
        found += [shutil.which(program), *(p for p in DEFAULT_PATHS if p.endswith(f"/{program}"))]
    return [Path(path) for path in dict.fromkeys(found) if path and Path(path).exists()]


def _inspect(path: Path) -> RedisServer:
    fix = "Pass the path of a redis-server or valkey-server program to --redis-server."
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unsuitable(f"cannot run {path}: {error}", fix) from error
    found = parse_banner(done.stdout)
    if found is None:
        raise Unsuitable(f"{path} is not a Redis server", fix)
    program = path.read_bytes()
    notifies, has_vector_sets = b"libsystemd.so" in program, b"\0VSIM\0" in program
    return RedisServer(path, found.numbers, notifies, has_vector_sets, found.product)
