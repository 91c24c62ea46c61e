"""Files shared by gateway and worker: written atomically, accessible to their group."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

#: Members of the group may create, rename and remove files; new files get the directory's group.
#: Set explicitly, because the units have UMask=0077.
DIRECTORY_MODE: Final = 0o2770
#: The mode if setgid must not be set (RestrictSUIDSGID=yes in the units). There the group is the
#: primary group of gateway and worker, so new files have it anyway.
PLAIN_DIRECTORY_MODE: Final = 0o770
FILE_MODE: Final = 0o640
#: Prefix and suffix of the names of partial files.
PART_PREFIX: Final = "."
PART_SUFFIX: Final = ".part"


def make_directory(path: Path) -> None:
    """Create a directory and its parents; existing ones keep their owner and mode."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        if path.parent == path:
            break
        path = path.parent
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process created it
            directory.mkdir(0o700)
            try:
                directory.chmod(DIRECTORY_MODE)
            except PermissionError:
                directory.chmod(PLAIN_DIRECTORY_MODE)


def part_path(path: Path, token: str = "") -> Path:
    """The name of a partial file next to `path`; unique without a token."""
    return path.with_name(f"{PART_PREFIX}{path.name}.{token or secrets.token_hex(4)}{PART_SUFFIX}")


def is_part(name: str) -> bool:
    return name.startswith(PART_PREFIX) and name.endswith(PART_SUFFIX)


def open_part(part: Path) -> int:
    """Create a file for writing; raises if it exists."""
    descriptor = os.open(
        part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE
    )
    os.fchmod(descriptor, FILE_MODE)
    return descriptor


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`; os.write may write less."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def commit_file(descriptor: int, part: Path, path: Path) -> None:
    """Sync a partial file and rename it, so that it survives a power cut."""
    os.fsync(descriptor)
    rename_durably(part, path)


def rename_durably(part: Path, path: Path) -> None:
    """Rename a file that is already synced, and sync its directory."""
    os.rename(part, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
