"""File operations for root in directories of services: through descriptors, never through a link.

A service may replace anything in a directory that it may write, also while the installer runs. So a
path is opened directory by directory, and what was opened is what is checked and changed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from deploy.installer.errors import Unsuitable

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: Enough to open entries of a directory; needs no permission to list it.
_PASS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
#: A file, directory or link itself, which is not opened for reading.
_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def open_directory(path: Path, *, create: bool = False) -> Iterator[int]:
    """Opens an absolute path; raises FileNotFoundError, or Unsuitable for a link.

    A link above `path` is followed if only root can change it, such as /opt on another disk.
    """
    with _walk(path, create=create, is_followed=False) as descriptor:
        yield descriptor


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a regular file for reading; raises Unsuitable for a link or anything else."""
    with _open_parent(path) as parent:
        descriptor = _open_entry(path, parent, _FILE)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Unsuitable(f"{path} is not a regular file", "Move it away, then try again.")
    with open(descriptor, "rb") as file:
        yield file


def read_text(path: Path, errors: str = "strict") -> str:
    """Content of a regular file."""
    with open_file(path) as file:
        return file.read().decode(errors=errors)


def status(path: Path) -> os.stat_result | None:
    """Status of the file, directory or link itself; None if there is none."""
    try:
        with _open_parent(path) as parent:
            return os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def is_link(path: Path) -> bool:
    found = status(path)
    return found is not None and stat.S_ISLNK(found.st_mode)


def is_file(path: Path) -> bool:
    """True for a regular file, false for a link to one."""
    found = status(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def refuse_link(path: Path) -> None:
    """Raises Unsuitable if there is a link."""
    if is_link(path):
        raise refusal(path)


def refusal(path: Path) -> Unsuitable:
    """The error for a link that is not followed."""
    return Unsuitable(
        f"{path} is a symbolic link; the installer follows no links here, because it runs as root",
        f"Find out who created it (ls -l {path}) and remove it. For data on another disk use a "
        "bind mount.",
    )


def write(path: Path, content: bytes, mode: int, set_owner: Callable[[int], None]) -> None:
    """Writes a temporary file with owner and mode, then renames it over `path`."""
    with _open_parent(path, create=True) as parent:
        name = f".{path.name}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                set_owner(descriptor)
                os.fchmod(descriptor, mode)
                file.flush()
                os.fsync(descriptor)
            os.replace(name, path.name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            os.unlink(name, dir_fd=parent)
            raise


def link(path: Path, target: str) -> None:
    """Creates a temporary link, then renames it over `path`."""
    with _open_parent(path, create=True) as parent:
        name = f".{path.name}.{secrets.token_hex(8)}"
        os.symlink(target, name, dir_fd=parent)
        try:
            os.replace(name, path.name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            os.unlink(name, dir_fd=parent)
            raise


def read_link(path: Path) -> str:
    """Target of a link."""
    with _open_parent(path) as parent:
        return os.readlink(path.name, dir_fd=parent)


def remove(path: Path) -> None:
    """Removes a file, a link (not its target) or a directory with its contents."""
    with _open_parent(path) as parent:
        found = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            # Works with descriptors itself. Its parent is a directory of root: it was opened above.
            shutil.rmtree(path)
        else:
            os.unlink(path.name, dir_fd=parent)


def remove_if_empty(path: Path) -> None:
    """Removes a directory if there is nothing in it."""
    with open_directory(path) as descriptor:
        if os.listdir(descriptor):
            return
    with _open_parent(path) as parent:
        os.rmdir(path.name, dir_fd=parent)


def file_names(path: Path) -> list[str]:
    """Names of all files and links in a directory and in those below; empty if there is none."""
    try:
        with open_directory(path) as directory:
            return [name for *_, files, _ in os.fwalk(".", dir_fd=directory) for name in files]
    except FileNotFoundError:
        return []


def give_contents(path: Path, directory: int, user_id: int, group_id: int) -> None:
    """Sets the owner of everything in an open directory; raises Unsuitable for a hard link.

    `path` is for messages. A link itself changes its owner, its target does not. A file with a
    second name could be any file of the disk.
    """
    for where, directories, files, parent in os.fwalk(".", dir_fd=directory):
        for name in (*directories, *files):
            descriptor = os.open(name, _ENTRY, dir_fd=parent)
            try:
                found = os.fstat(descriptor)
                if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                    raise Unsuitable(
                        f"{path / where / name} has a second name (hard link); its owner is not "
                        "changed",
                        "Remove it, then run the command again.",
                    )
                # What was checked, even if `name` is something else by now.
                os.chown(f"/proc/self/fd/{descriptor}", user_id, group_id)
            finally:
                os.close(descriptor)


@contextmanager
def _open_parent(path: Path, *, create: bool = False) -> Iterator[int]:
    """Opens the directory that `path` is in."""
    with _walk(path.parent, create=create, is_followed=True) as descriptor:
        yield descriptor


@contextmanager
def _walk(path: Path, *, create: bool, is_followed: bool) -> Iterator[int]:
    """Opens directory by directory. `is_followed`: whether a link of root at `path` is followed."""
    descriptor = os.open("/", _PASS)
    try:
        for position, part in enumerate(path.parts[1:], 2):
            here = Path(*path.parts[:position])
            if create:
                _make_missing(part, descriptor)
            is_last = here == path
            flags = _DIRECTORY if is_last else _PASS
            following = _open_part(here, descriptor, flags, is_followed or not is_last)
            os.close(descriptor)
            descriptor = following
        yield descriptor
    finally:
        os.close(descriptor)


def _make_missing(name: str, parent: int) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)


def _open_part(path: Path, parent: int, flags: int, is_followed: bool) -> int:
    try:
        return os.open(path.name, flags | os.O_NOFOLLOW, dir_fd=parent)
    except NotADirectoryError:
        found = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            raise
        if not is_followed or not _only_root_changes(found, os.fstat(parent)):
            raise refusal(path) from None
        return os.open(path.name, flags, dir_fd=parent)


def _open_entry(path: Path, parent: int, flags: int) -> int:
    try:
        return os.open(path.name, flags, dir_fd=parent)
    except OSError:
        found = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            raise refusal(path) from None
        raise


def _only_root_changes(found: os.stat_result, parent: os.stat_result) -> bool:
    """True for a link of root (or of the user who runs this) in a directory that no one else may
    write."""
    trusted = (0, os.geteuid())
    others_write = parent.st_mode & 0o022 and not parent.st_mode & stat.S_ISVTX
    return found.st_uid in trusted and parent.st_uid in trusted and not others_write
