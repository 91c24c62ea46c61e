"""Files below the sources' root: which there are, and their bytes, whatever links and races try."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import stat
from collections.abc import Iterator
from typing import Final

from common.features.workflows.memory_first import MOST_FILE_BYTES
from worker.features.rag.parsing import reader

#: What a file is, by the end of its name.
JSON, CSV = "application/json", "text/csv"
MEDIA_TYPES: Final = {
    ".txt": reader.TEXT_PLAIN,
    ".md": reader.TEXT_MARKDOWN,
    ".markdown": reader.TEXT_MARKDOWN,
    ".html": reader.TEXT_HTML,
    ".htm": reader.TEXT_HTML,
    ".json": JSON,
    ".csv": CSV,
    ".pdf": reader.APPLICATION_PDF,
}
#: Entries and levels of directories that are looked at.
MOST_ENTRIES: Final = 20_000
MOST_LEVELS: Final = 32
MATCH_ALL: Final = "**"
#: A link is never followed, a pipe never waited for.
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_CHUNK_BYTES: Final = 1 << 20


class UnusableFile(Exception):
    """Why a file is not read, in words for whoever named it."""


class SourceRoot:
    """The only directory from which files are read.

    A path is resolved first, so links that stay below the root work; then each part of it is
    opened below the one before without following links, so nothing that is changed meanwhile can
    lead out of it. What was opened is looked at, not what its name pointed to before.
    """

    def __init__(self, directory: str) -> None:
        self._directory = os.path.realpath(directory) if directory else ""

    def relative(self, path: str) -> str:
        """A path below the root, resolved, with `/` between its parts; empty for the root."""
        if not self._directory:
            raise UnusableFile(
                "files are not read here: WORKFLOW_SOURCES_ROOT is not set; send the text itself"
            )
        if "\0" in path or not _is_clean(path):
            raise UnusableFile(f"{path[:200]!r} is no path")
        whole = os.path.realpath(os.path.join(self._directory, path))
        root = self._directory.rstrip("/") + "/"
        if whole != self._directory and not whole.startswith(root):
            raise UnusableFile(f"{path[:200]!r} is not below the directory for sources")
        found = "" if whole == self._directory else whole[len(root) :]
        if any(part.startswith(".") for part in found.split("/")):
            raise UnusableFile(
                f"{path[:200]!r} is hidden; files and directories with a dot are not read"
            )
        return found

    def media_type(self, path: str) -> str:
        ending = os.path.splitext(path)[1].lower()
        try:
            return MEDIA_TYPES[ending]
        except KeyError:
            known = ", ".join(sorted(MEDIA_TYPES))
            raise UnusableFile(
                f"{path[:200]!r}: such files are not read; there are {known}"
            ) from None

    def read(self, path: str) -> bytes:
        """The bytes of a file, by its path as `relative` told it."""
        with self._open(path) as file:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode):
                raise UnusableFile(f"{path[:200]!r} is no plain file")
            if about.st_size > MOST_FILE_BYTES:
                raise _too_large(path)
            return _read(file, path)

    def files(self, path: str, pattern: str = "") -> list[str]:
        """The files that can be read below a directory, by name; hidden ones and links are not."""
        wanted = (pattern or MATCH_ALL).strip("/").split("/")
        if pattern in ("", MATCH_ALL, "*"):
            wanted = [MATCH_ALL, "*"] if pattern != "*" else ["*"]
        with self._open(path) as top:
            if not stat.S_ISDIR(os.fstat(top).st_mode):
                raise UnusableFile(f"{path[:200]!r} is no directory; name it as a file")
            found = [
                "/".join((*(path.split("/") if path else ()), *parts))
                for parts in _walk(top, _EntryLimit())
                if os.path.splitext(parts[-1])[1].lower() in MEDIA_TYPES and _matches(parts, wanted)
            ]
        return sorted(found, key=lambda name: (name.split("/"), name))

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[int]:
        """What is at a path, opened part by part from the root on."""
        try:
            at = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for part in path.split("/") if path else ():
                above, at = at, -1
                try:
                    at = os.open(part, _FLAGS, dir_fd=above)
                finally:
                    os.close(above)
        except OSError as error:
            raise UnusableFile(f"{path[:200]!r} cannot be opened: {error.strerror}") from None
        try:
            yield at
        finally:
            os.close(at)


class _EntryLimit:
    """How much of a tree may still be looked at."""

    def __init__(self) -> None:
        self._left = MOST_ENTRIES

    def use_one(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise UnusableFile(
                f"the directory holds more than {MOST_ENTRIES} entries; name one further down"
            )


def _walk(top: int, budget: _EntryLimit, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The parts of the paths of all plain files below an open directory."""
    with os.scandir(top) as entries:
        found = sorted(
            (entry.name, entry.is_dir(follow_symlinks=False), entry)
            for entry in _limited_entries(entries, budget)
        )
    for name, is_directory, entry in found:
        if name.startswith(".") or not _is_clean(name):
            continue
        if not is_directory:
            if entry.is_file(follow_symlinks=False):
                yield (*above, name)
        elif len(above) < MOST_LEVELS:
            try:
                below = os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=top)
            except OSError:  # it is gone, or not for us
                continue
            try:
                yield from _walk(below, budget, (*above, name))
            finally:
                os.close(below)


def _limited_entries(
    entries: Iterator[os.DirEntry[str]], budget: _EntryLimit
) -> Iterator[os.DirEntry[str]]:
    for entry in entries:
        budget.use_one()
        yield entry


def _matches(parts: tuple[str, ...], wanted: list[str]) -> bool:
    """Whether a path fits a pattern, in which `**` stands for any number of directories."""
    fits = [True] + [False] * len(parts)
    for pattern in wanted:
        if pattern == MATCH_ALL:
            for at in range(len(parts)):
                fits[at + 1] = fits[at + 1] or fits[at]
        else:
            fits = [False] + [
                fits[at] and fnmatch.fnmatchcase(part, pattern) for at, part in enumerate(parts)
            ]
    return fits[-1]


def _read(file: int, path: str) -> bytes:
    """All of an open file; it may have grown since it was looked at."""
    chunks: list[bytes] = []
    size = 0
    try:
        while chunk := os.read(file, _CHUNK_BYTES):
            chunks.append(chunk)
            size += len(chunk)
            if size > MOST_FILE_BYTES:
                raise _too_large(path)
    except OSError as error:
        raise UnusableFile(f"{path[:200]!r} cannot be read: {error.strerror}") from None
    return b"".join(chunks)


def _too_large(path: str) -> UnusableFile:
    return UnusableFile(f"{path[:200]!r} has more than {MOST_FILE_BYTES} bytes; split it")


def _is_clean(name: str) -> bool:
    """Whether a name is text; others cannot be told to anybody."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
