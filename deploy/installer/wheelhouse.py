"""`make wheelhouse`: downloads all wheels for an offline host, for its platform and Python."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.installer.errors import InstallError
from deploy.installer.layout import CHECKOUT
from deploy.installer.sources import DISTRIBUTION, Sources
from sluice.ops.model.catalogue import LOCK as MODEL_LOCK

#: glibc minor versions, from CentOS 7 to Ubuntu 22.04 (JetPack 6).
_GLIBC = range(17, 36)
_FIX = "Check the internet connection, and that the package has a wheel for this platform."


def platforms(machine: str) -> list[str]:
    """Supported wheel tags, newest first."""
    tags = [f"manylinux_2_{minor}_{machine}" for minor in reversed(_GLIBC)]
    return [*tags, f"manylinux2014_{machine}", f"linux_{machine}"]


def download(directory: Path, machine: str, python_version: str) -> None:
    """Downloads the wheels of the lock file and builds the sluice wheel."""
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob(f"{DISTRIBUTION}-*.whl"):
        stale.unlink()
    lock = for_target(Sources().lock.read_text(), machine, python_version)
    _fetch(directory, lock, machine, python_version)
    # `make setup` has installed what builds it, pinned; an isolated build would take the newest.
    pip("wheel", "--no-build-isolation", "--no-deps", str(CHECKOUT), w=directory)


def download_model(directory: Path, machine: str, python_version: str) -> None:
    """Downloads what `--with-model` needs in addition."""
    directory.mkdir(parents=True, exist_ok=True)
    _fetch(directory, MODEL_LOCK.read_text(), machine, python_version)


def _fetch(directory: Path, lock: str, machine: str, python_version: str) -> None:
    abi = f"cp{python_version.replace('.', '')}"
    words = ["--python-version", python_version, "--implementation", "cp"]
    for tag in (abi, "abi3", "none"):
        words += ["--abi", tag]
    for platform in platforms(machine):
        words += ["--platform", platform]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(lock)
        requirements.flush()
        words += ["--no-deps", "--require-hashes", "-r", requirements.name]
        pip("download", "--only-binary=:all:", *words, d=directory)


def for_target(lock: str, machine: str, python_version: str) -> str:
    """Selects the lock file's entries for another host and removes their markers.

    pip evaluates markers for the Python it runs in, not for the target. Only the minor version of
    the target is known, so entries for its first or its last patch release are included.
    """
    entries = re.split(r"\n(?=\S)", lock.strip())
    kept = []
    for entry in entries:
        requirement, semicolon, rest = entry.partition(" ; ")
        condition, _, hashes = rest.partition(" \\\n")
        if not semicolon:
            kept.append(entry)
        elif any(_matches(condition, machine, f"{python_version}.{patch}") for patch in (0, 99)):
            kept.append(f"{requirement} \\\n{hashes}")
    return "\n".join(kept) + "\n"


def _matches(condition: str, machine: str, python_full_version: str) -> bool:
    from packaging.markers import Marker  # part of the development environment

    environment = {
        "python_full_version": python_full_version,
        "python_version": ".".join(python_full_version.split(".")[:2]),
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": machine,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    return Marker(condition).evaluate(dict(environment))


def pip(command: str, *words: str, **directory: Path) -> None:
    """Runs pip of this interpreter."""
    [(option, path)] = directory.items()
    line = [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*line, f"-{option}", str(path), *words])
    if done.returncode != 0:
        raise InstallError(f"pip {command} failed", _FIX)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make wheelhouse")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--machine", default=os.uname().machine, help="x86_64 or aarch64")
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    parser.add_argument("--python-version", default=here)
    parser.add_argument(
        "--with-model", action="store_true", help="include the model's wheels (210 MB)"
    )
    arguments = parser.parse_args()
    target = f"{arguments.machine}, Python {arguments.python_version}"
    print(f"downloading wheels for {target} into {arguments.directory}/", flush=True)
    try:
        requirements = (arguments.directory, arguments.machine, arguments.python_version)
        download(*requirements)
        if arguments.with_model:
            download_model(*requirements)
    except InstallError as error:
        print(f"make wheelhouse: {error.what}\n{error.fix}", file=sys.stderr)
        return error.exit_code
    count = len(list(arguments.directory.glob("*.whl")))
    model = " --with-model" if arguments.with_model else ""
    print(
        f"{count} wheels. On the target host: deploy/install.sh install{model} --wheelhouse "
        f"{arguments.directory}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
