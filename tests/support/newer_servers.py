"""Redis 8.6 and Valkey 9.1 for tests: `make newer-servers` unpacks both from Debian's archive.

Debian has them in sid and experimental, which need a newer C library than most hosts have. So the
libraries are unpacked too, and each program is changed to load only these. apt runs with files in
the cache directory; no package is installed, and root is not needed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tests.system.cache import built_once, cache_home

REDIS_8, VALKEY_9 = "redis-8", "valkey-9"
SUITES = ("sid", "experimental")
#: Debian's names of the architectures, by the kernel's name.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: Programs on the host, and the Debian packages that contain them.
TOOLS = {"apt-get": "apt", "dpkg-deb": "dpkg"}
TIMEOUT_S = 600.0

_VERSION = re.compile(r"v=(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True)
class NewerServer:
    """A server program, and where Debian has it."""

    name: str
    program: str
    package: str
    #: Path in the package. It is one program: its name decides whether it checks files or serves.
    packaged: str
    at_least: tuple[int, int]


SERVERS: Final = {
    REDIS_8: NewerServer(REDIS_8, "redis-server", "redis-tools", "usr/bin/redis-check-rdb", (8, 4)),
    VALKEY_9: NewerServer(
        VALKEY_9, "valkey-server", "valkey-tools", "usr/bin/valkey-check-rdb", (9, 0)
    ),
}
#: patchelf sets the loader and the libraries of a program.
PACKAGES = (*(server.package for server in SERVERS.values()), "patchelf")
#: The newest version wins, also if it is only in experimental.
PREFERENCES = f"""\
Package: {" ".join(server.package for server in SERVERS.values())}
Pin: release a=experimental
Pin-Priority: 500
"""


class CannotBuild(Exception):
    """The servers cannot be unpacked on this host; the text is the reason."""


def newer_binary(name: str) -> str | None:
    """Path of the server REDIS_8 or VALKEY_9; None if `make newer-servers` has not unpacked it."""
    binary = cache_home() / _directory() / name / SERVERS[name].program
    return str(binary) if binary.exists() else None


def build() -> dict[str, str]:
    """Unpacks both servers if they are not in the cache; returns their versions by name."""
    directory = built_once(_directory(), _build)
    return {name: _version(str(directory / name / s.program)) for name, s in SERVERS.items()}


@functools.cache
def _directory() -> str:
    recipe = "\n".join((*SUITES, *PACKAGES, PREFERENCES, *(s.packaged for s in SERVERS.values())))
    fingerprint = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    return f"servers-{platform.machine()}-{fingerprint}"


def _build(unfinished: Path) -> None:
    architecture = ARCHITECTURES.get(platform.machine())
    if sys.platform != "linux" or architecture is None:
        raise CannotBuild(f"no packages for {platform.system()} on {platform.machine()}")
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise CannotBuild(f"{tool} is not installed: apt-get install {package}")
    if not KEYRING.exists():
        raise CannotBuild(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
    print(f"unpacking {' and '.join(SERVERS)} (about 30 MB, once)", flush=True)
    with tempfile.TemporaryDirectory(prefix="sluice-apt-") as work:
        tree = Path(work) / "tree"
        for archive in _download(Path(work), architecture):
            _run("dpkg-deb", "-x", archive, tree)
        _install(tree, unfinished)


def _download(work: Path, architecture: str) -> list[Path]:
    """Downloads the packages and everything they depend on; returns the archives."""
    for directory in ("state/lists/partial", "cache/archives/partial"):
        (work / directory).mkdir(parents=True)
    mirror = _mirror()
    sources = [f"deb [signed-by={KEYRING}] {mirror} {suite} main\n" for suite in SUITES]
    (work / "sources.list").write_text("".join(sources))
    (work / "preferences").write_text(PREFERENCES)
    (work / "status").touch()  # nothing is installed, so every dependency is downloaded
    options = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": work / "preferences",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State": work / "state",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": 3,
    }
    apt = ("apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items()))
    _run(*apt, "-o", "APT::Update::Error-Mode=any", "update")
    _run(*apt, "--yes", "--download-only", "install", *PACKAGES)
    return sorted((work / "cache/archives").glob("*.deb"))


def _mirror() -> str:
    """The Debian mirror in the apt sources of this host."""
    for uri in _run("apt-get", "indextargets", "--format", "$(REPO_URI)").split():
        if urlsplit(uri).path.strip("/").split("/")[-1] == "debian":
            return uri
    raise CannotBuild("the apt sources of this host name no Debian mirror")


def _install(tree: Path, unfinished: Path) -> None:
    """Copies the servers and the libraries, and makes the servers use these libraries."""
    libraries = unfinished / "lib"
    libraries.mkdir()
    for found in tree.glob("usr/lib/*-linux-gnu*/*.so*"):
        shutil.copy2(found, libraries / found.name, follow_symlinks=True)
    loader = next(libraries.glob("ld-linux-*.so.*"))
    isolated = (loader, "--library-path", libraries)
    # The programs contain absolute paths, so they name the directory of the finished build.
    final = cache_home() / _directory() / "lib"
    for server in SERVERS.values():
        binary = unfinished / server.name / server.program
        binary.parent.mkdir()
        shutil.copy2(tree / server.packaged, binary)
        version = _version(*map(str, isolated), str(binary))
        if tuple(map(int, version.split(".")[:2])) < server.at_least:
            needed = ".".join(map(str, server.at_least))
            raise CannotBuild(f"{server.package} is {version}; {needed} or newer is needed")
        _run(
            *(*isolated, tree / "usr/bin/patchelf", "--set-interpreter", final / loader.name),
            *("--force-rpath", "--set-rpath", final, binary),
        )


def _version(*command: str) -> str:
    output = _run(*command, "--version")
    found = _VERSION.search(output)
    if found is None:
        raise CannotBuild(f"{command[-1]} is not a server: {output.strip()}")
    return ".".join(found.groups())


def _run(*command: str | Path | int) -> str:
    """Returns the output of a command; CannotBuild if it fails."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotBuild(f"cannot run {command[0]}: {error}") from error
    if done.returncode != 0:
        raise CannotBuild(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def main() -> int:
    """Builds the servers. On a host where that is impossible, fails only in CI."""
    try:
        versions = build()
    except CannotBuild as error:
        needed = bool(os.environ.get("CI"))
        consequence = "needed in CI" if needed else "their tests are skipped"
        print(f"newer servers: {error} ({consequence})", file=sys.stderr)
        return 1 if needed else 0
    for name, version in versions.items():
        print(f"{name}: {version} at {newer_binary(name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
