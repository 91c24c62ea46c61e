"""The file of deliveries that were given up: one line of JSON each, never torn, never too long."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

#: From here on a new file is begun.
MOST_BYTES: Final = 64 << 20
#: Older files that are kept, as `….1` (the newest) and so on.
OLDER: Final = 4
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_NEWLINE: Final = b"\n"


class DeadFile:
    """Many processes may append to it: each holds a lock on the file while it does."""

    def __init__(self, path: str | Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = Path(path)
        self._most_bytes = most_bytes

    def append(self, line: bytes) -> bool:
        """Add a line, and see it on the disk; False where that cannot be, which is logged."""
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            with self._locked() as file:
                _write(file, line.rstrip(_NEWLINE) + _NEWLINE)
                if os.fstat(file).st_size <= len(line) + 1:
                    _sync_directory(self._path.parent)
        except OSError as error:
            log.error(
                "a webhook that was given up cannot be written to %s: %s; see "
                "WORKFLOW_WEBHOOK_DLQ_PATH",
                self._path,
                error,
            )
            return False
        return True

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, ours alone, with room for a line."""
        while True:
            file = os.open(self._path, _FLAGS, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not self._is_current(file):  # it was set aside while we waited
                    continue
                if os.fstat(file).st_size >= self._most_bytes:
                    self._set_aside()
                    continue
                yield file
                return
            finally:
                os.close(file)

    def _is_current(self, file: int) -> bool:
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            return False
        held = os.fstat(file)
        return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)

    def _set_aside(self) -> None:
        for number in range(OLDER, 0, -1):
            older = self._older(number - 1)
            if older.exists():
                os.replace(older, self._older(number))

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _write(file: int, line: bytes) -> None:
    """In one piece or not at all; what a power cut left half is ended first."""
    size = os.fstat(file).st_size
    torn = size > 0 and os.pread(file, 1, size - 1) != _NEWLINE
    whole = _NEWLINE + line if torn else line
    written = os.write(file, whole)
    if written < len(whole):
        os.ftruncate(file, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(file)


def _sync_directory(path: Path) -> None:
    """A new file's name is not on the disk before its directory is."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
