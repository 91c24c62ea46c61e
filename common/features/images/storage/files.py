"""Files that gateway and worker share: whole under their name or not there, open to their group."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

#: Whoever is in the group makes, renames and removes files; new ones get the group of the
#: directory. Said outright, because the units have UMask=0077.
DIRECTORY_MODE: Final = 0o2770
#: What the directory's mode is where setgid may not be set (RestrictSUIDSGID=yes in the units).
#: There gateway and worker have the group as their first one, so files get it all the same.
PLAIN_DIRECTORY_MODE: Final = 0o770
FILE_MODE: Final = 0o640
#: How the names of files begin and end that are not whole yet.
PART_PREFIX: Final = "."
PART_SUFFIX: Final = ".part"


def make_directory(path: Path) -> None:
    """Have a directory and its parents; those that are there keep their owner and mode."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        if path.parent == path:
            break
        path = path.parent
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):  # somebody else was faster
            directory.mkdir(0o700)
            try:
                directory.chmod(DIRECTORY_MODE)
            except PermissionError:
                directory.chmod(PLAIN_DIRECTORY_MODE)


def part_path(path: Path, token: str = "") -> Path:
    """A name beside `path` for what is not whole yet; without a token one that nobody else uses."""
    return path.with_name(f"{PART_PREFIX}{path.name}.{token or secrets.token_hex(4)}{PART_SUFFIX}")


def is_part(name: str) -> bool:
    """Whether a file of this name is on its way to another."""
    return name.startswith(PART_PREFIX) and name.endswith(PART_SUFFIX)


def open_part(part: Path) -> int:
    """A new file, open for writing; raises where there is one."""
    descriptor = os.open(
        part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE
    )
    os.fchmod(descriptor, FILE_MODE)
    return descriptor


def write_all(descriptor: int, data: bytes) -> None:
    """All of `data`, however much the system takes at once."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def commit_file(descriptor: int, part: Path, path: Path) -> None:
    """Give what was written its name, so that it is there after a power cut, too."""
    os.fsync(descriptor)
    rename_durably(part, path)


def rename_durably(part: Path, path: Path) -> None:
    """The second half of it: what was written lies safely already."""
    os.rename(part, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
