"""Reads files below the sources' root, safe against symbolic links and races."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import stat
from collections.abc import Iterator
from typing import Final

from sluice.common.features.workflows.memory_first import MOST_FILE_BYTES
from sluice.worker.features.rag.parsing import reader

#: Media type by file extension.
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
#: Limits of a directory scan: entries and levels.
MOST_ENTRIES: Final = 20_000
MOST_LEVELS: Final = 32
MATCH_ALL: Final = "**"
#: Never follows a symbolic link and never blocks on a pipe.
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_CHUNK_BYTES: Final = 1 << 20


class UnusableFile(Exception):
    """Why a file is not read; the message is for the client."""


class SourceRoot:
    """The only directory from which source files are read.

    A path is resolved first, so that links within the root work. Then each part is opened relative
    to the previous one without following links, so that no concurrent change can lead outside.
    Checks apply to the opened file, not to its name.
    """

    def __init__(self, directory: str) -> None:
        self._directory = os.path.realpath(directory) if directory else ""

    def relative(self, path: str) -> str:
        """Resolve a path to one relative to the root, with `/` as separator; '' for the root
        itself.
        """
        if not self._directory:
            raise UnusableFile(
                "reading files is disabled: WORKFLOW_SOURCES_ROOT is not set; send the text itself"
            )
        if "\0" in path or not _is_clean(path):
            raise UnusableFile(f"{path[:200]!r} is not a valid path")
        whole = os.path.realpath(os.path.join(self._directory, path))
        root = self._directory.rstrip("/") + "/"
        if whole != self._directory and not whole.startswith(root):
            raise UnusableFile(f"{path[:200]!r} is outside of the sources directory")
        found = "" if whole == self._directory else whole[len(root) :]
        if any(part.startswith(".") for part in found.split("/")):
            raise UnusableFile(
                f"{path[:200]!r} is hidden; names that begin with a dot are not read"
            )
        return found

    def media_type(self, path: str) -> str:
        ending = os.path.splitext(path)[1].lower()
        try:
            return MEDIA_TYPES[ending]
        except KeyError:
            known = ", ".join(sorted(MEDIA_TYPES))
            raise UnusableFile(
                f"{path[:200]!r}: unsupported file type; supported: {known}"
            ) from None

    def read(self, path: str) -> bytes:
        """Content of a file, by its path as returned by `relative`."""
        with self._open(path) as file:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise UnusableFile(f"{path[:200]!r} is not a regular file")
            if status.st_size > MOST_FILE_BYTES:
                raise _too_large(path)
            return _read(file, path)

    def files(self, path: str, pattern: str = "") -> list[str]:
        """Paths of the readable files below a directory, sorted; without hidden files and links."""
        patterns = (pattern or MATCH_ALL).strip("/").split("/")
        if pattern in ("", MATCH_ALL, "*"):
            patterns = [MATCH_ALL, "*"] if pattern != "*" else ["*"]
        with self._open(path) as top:
            if not stat.S_ISDIR(os.fstat(top).st_mode):
                raise UnusableFile(f"{path[:200]!r} is not a directory; use it as a file")
            found = [
                "/".join((*(path.split("/") if path else ()), *parts))
                for parts in _walk(top, _EntryLimit())
                if os.path.splitext(parts[-1])[1].lower() in MEDIA_TYPES
                and _matches(parts, patterns)
            ]
        return sorted(found, key=lambda name: (name.split("/"), name))

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[int]:
        """Open a path part by part from the root."""
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
    """Remaining entries of a directory scan."""

    def __init__(self) -> None:
        self._left = MOST_ENTRIES

    def use_one(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise UnusableFile(
                f"the directory has more than {MOST_ENTRIES} entries; use a subdirectory"
            )


def _walk(top: int, limit: _EntryLimit, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths, as parts, of all regular files below an open directory."""
    with os.scandir(top) as entries:
        found = sorted(
            (entry.name, entry.is_dir(follow_symlinks=False), entry)
            for entry in _limited_entries(entries, limit)
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
            except OSError:  # deleted, or not accessible
                continue
            try:
                yield from _walk(below, limit, (*above, name))
            finally:
                os.close(below)


def _limited_entries(
    entries: Iterator[os.DirEntry[str]], limit: _EntryLimit
) -> Iterator[os.DirEntry[str]]:
    for entry in entries:
        limit.use_one()
        yield entry


def _matches(parts: tuple[str, ...], patterns: list[str]) -> bool:
    """True if a path matches the patterns; `**` matches any number of directories."""
    fits = [True] + [False] * len(parts)
    for pattern in patterns:
        if pattern == MATCH_ALL:
            for at in range(len(parts)):
                fits[at + 1] = fits[at + 1] or fits[at]
        else:
            fits = [False] + [
                fits[at] and fnmatch.fnmatchcase(part, pattern) for at, part in enumerate(parts)
            ]
    return fits[-1]


def _read(file: int, path: str) -> bytes:
    """Read an open file completely; it may have grown since its size was checked."""
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
    """True if a name is valid Unicode; others cannot be returned as JSON."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
