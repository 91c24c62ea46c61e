"""The spool: uploads that wait for a worker, one file each, written atomically."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from sluice.common.features.images.storage.files import (
    PART_PREFIX,
    PART_SUFFIX,
    commit_file,
    is_part,
    make_directory,
    open_part,
    part_path,
    write_all,
)

if TYPE_CHECKING:
    from sluice.common.settings.images import SharedImageSettings


def spool_dir(settings: SharedImageSettings, data_dir: str) -> Path:
    return Path(settings.image_spool_dir or Path(data_dir) / "images" / "spool")


def store_dir(settings: SharedImageSettings, data_dir: str) -> Path:
    return Path(settings.image_store_dir or Path(data_dir) / "images" / "store")


#: Image id or upload id, as part of a file name.
_PART_OF_A_NAME: Final = re.compile(r"[0-9A-Za-z_-]{1,128}")
_NAME: Final = re.compile(r"(?P<image>[0-9A-Za-z_-]{1,128})\.(?P<upload>[0-9A-Za-z_-]{1,128})")


class SpoolEntry(NamedTuple):
    """A file in the spool."""

    image_id: str
    upload_id: str
    #: Its current name; a partial file has another name than the complete one.
    path: Path
    age_s: float
    is_part: bool


class Spool:
    """A directory that gateways write to and workers read from. All calls block."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, image_id: str, upload_id: str) -> Path:
        """The path of a complete upload; raises ValueError for invalid ids."""
        for name in (image_id, upload_id):
            if not _PART_OF_A_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not valid in a file name")
        return self.directory / f"{image_id}.{upload_id}"

    def output(self, image_id: str, upload_id: str, attempt: int) -> Path:
        """Where an attempt writes its result until it is stored."""
        return part_path(self.path(image_id, upload_id), str(attempt))

    def create(self, image_id: str, upload_id: str) -> SpoolFile:
        path = self.path(image_id, upload_id)
        make_directory(self.directory)
        return SpoolFile(path)

    def remove(self, image_id: str, upload_id: str, attempts: int = 0) -> None:
        """Remove an upload, if it exists, and the output of its first `attempts` attempts."""
        self.path(image_id, upload_id).unlink(missing_ok=True)
        for attempt in range(1, attempts + 1):
            self.output(image_id, upload_id, attempt).unlink(missing_ok=True)

    def entries(self) -> Iterator[SpoolEntry]:
        """All files of the spool, complete or partial; other files are ignored."""
        try:
            listing = os.scandir(self.directory)
        except FileNotFoundError:
            return
        now = time.time()
        with listing:
            for file in listing:
                part = is_part(file.name)
                name = file.name
                if part:
                    name = name[len(PART_PREFIX) : -len(PART_SUFFIX)].rpartition(".")[0]
                found = _NAME.fullmatch(name)
                if found is None:
                    continue
                try:
                    age_s = now - file.stat(follow_symlinks=False).st_mtime
                except FileNotFoundError:
                    continue
                yield SpoolEntry(found["image"], found["upload"], Path(file.path), age_s, part)

    def check(self) -> None:
        """Check that files can be created and removed; raises OSError."""
        make_directory(self.directory)
        probe = part_path(self.directory / "check")
        os.close(open_part(probe))
        probe.unlink()


class SpoolFile:
    """An upload being written: a partial file until it is committed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = part_path(path)
        self._descriptor = open_part(self._part)
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        """Append; raises OSError, such as when the disk is full."""
        write_all(self._descriptor, data)
        self._digest.update(data)
        self.size_bytes += len(data)

    def commit(self) -> tuple[int, str]:
        """Complete the upload durably; returns its size and SHA-256 (hex)."""
        try:
            commit_file(self._descriptor, self._part, self._path)
        except OSError:
            self.discard()
            raise
        self._close()
        return self.size_bytes, self._digest.hexdigest()

    def discard(self) -> None:
        """Remove the partial file. A committed file stays."""
        if self._descriptor >= 0:
            self._close()
            self._part.unlink(missing_ok=True)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
