"""Storage of processed images in a directory shared by gateways and workers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from sluice.common.features.images.storage.base import (
    ObjectContent,
    ReplaceCheck,
    Sleep,
    StorageError,
    StoredObject,
    TransientStorageError,
    retry_transient,
    validate_storage_key,
)
from sluice.common.features.images.storage.files import (
    is_part,
    make_directory,
    open_part,
    part_path,
    rename_durably,
    write_all,
)

_CHUNK_BYTES: Final = 256 * 1024
#: Errors of a disk or network file system that a retry does not resolve.
_PERMANENT_ERRNOS: Final = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
)

Result = TypeVar("Result")


class StoredFile(NamedTuple):
    """A file in the directory."""

    #: '' for a partial file.
    key: str
    path: Path
    age_s: float


class DirectoryStorage:
    """One file per object; an ETag is the MD5 of the bytes, in hex."""

    name = "dir"

    def __init__(self, directory: Path, sleep: Sleep = asyncio.sleep) -> None:
        self.directory = directory
        self._sleep = sleep

    async def put(
        self, key: str, data: bytes, content_type: str, may: ReplaceCheck | None = None
    ) -> StoredObject:
        """Write a temporary file and rename it, so that readers see either object completely."""
        path = self._path(key)

        async def write() -> StoredObject:
            part = part_path(path)
            former = await self._in_thread("written to", lambda: _write(part, path, data))
            if may is not None:
                try:
                    await may()
                except BaseException:
                    part.unlink(missing_ok=True)
                    raise
            checked = may is not None
            stored = await self._in_thread(
                "written to", lambda: _replace(part, path, data, former, checked=checked)
            )
            if stored is None:
                raise TransientStorageError(f"another process has stored {key} meanwhile")
            return stored

        return await retry_transient(write, self._sleep)

    async def read(self, key: str) -> ObjectContent | None:
        """The current object, even if it is replaced while it is read."""
        path = self._path(key)

        def opened() -> _Chunks | None:
            try:
                return _Chunks(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
            except FileNotFoundError:
                return None

        chunks = await self._in_thread("read", opened)
        return None if chunks is None else ObjectContent(chunks.size_bytes, chunks)

    async def url(self, key: str, seconds: int) -> str | None:
        return None

    async def delete(self, key: str) -> None:
        path = self._path(key)
        await self._in_thread("written to", lambda: path.unlink(missing_ok=True))

    async def check(self) -> None:
        """Create a file and remove it."""

        def probe() -> None:
            make_directory(self.directory)
            part = part_path(self.directory / "check")
            os.close(open_part(part))
            part.unlink()

        await self._in_thread("written to", probe)

    async def close(self) -> None:
        """There is nothing to release."""

    def files(self) -> list[StoredFile]:
        """All objects and partial files; blocks."""
        now, found = time.time(), []
        for path in sorted(self.directory.rglob("*")):
            with contextlib.suppress(FileNotFoundError):
                if path.is_symlink() or not path.is_file():
                    continue
                key = "" if is_part(path.name) else path.relative_to(self.directory).as_posix()
                found.append(StoredFile(key, path, now - path.stat().st_mtime))
        return found

    def _path(self, key: str) -> Path:
        return self.directory / validate_storage_key(key)

    async def _in_thread(self, what: str, function: Callable[[], Result]) -> Result:
        try:
            return await asyncio.to_thread(function)
        except OSError as error:
            kind = StorageError if error.errno in _PERMANENT_ERRNOS else TransientStorageError
            raise kind(
                f"the image store {self.directory} cannot be {what}: {error.strerror or error}; "
                "check that the directory (IMAGE_STORE_DIR) has free space and its group may write"
            ) from error


def _write(part: Path, path: Path, data: bytes) -> tuple[int, int] | None:
    """Write a temporary file durably; returns the identity of the file it will replace."""
    make_directory(path.parent)
    descriptor = open_part(part)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
        return _identity(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _replace(
    part: Path, path: Path, data: bytes, former: tuple[int, int] | None, *, checked: bool
) -> StoredObject | None:
    """Rename the temporary file; None if another file has that name by now."""
    try:
        is_ours = not checked or _identity(path) == former
        if is_ours:
            rename_durably(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if not is_ours:
        part.unlink(missing_ok=True)
        return None
    return StoredObject(hashlib.md5(data, usedforsecurity=False).hexdigest(), len(data))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


class _Chunks:
    """The content of an open file, which is closed at its end or when it is discarded."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size_bytes = os.fstat(descriptor).st_size
        #: A thread may still be reading when the client disconnects. Then the thread closes the
        #: file; otherwise it could read from another file with the same descriptor.
        self._lock = threading.Lock()
        self._is_reading = self._is_unwanted = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await asyncio.to_thread(self._read)
        except OSError as error:
            raise StorageError(f"an object cannot be read: {error.strerror}") from error
        if not chunk:
            self._close()
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        self._close()

    def _read(self) -> bytes:
        with self._lock:
            if self._is_unwanted:
                return b""
            self._is_reading = True
        try:
            return os.read(self._descriptor, _CHUNK_BYTES)
        finally:
            self._has_read()

    def _has_read(self) -> None:
        with self._lock:
            self._is_reading = False
            if self._is_unwanted:
                os.close(self._descriptor)

    def _close(self) -> None:
        with self._lock:
            if not self._is_unwanted and not self._is_reading:
                os.close(self._descriptor)
            self._is_unwanted = True

    def __del__(self) -> None:
        self._close()
