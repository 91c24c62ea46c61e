"""Removes files that are no longer needed: failed uploads and objects without a record."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis

from sluice.common.aio import cancel
from sluice.common.contracts.images import (
    STATUS_TTL_S,
    STORAGE_PREFIX,
    STORAGE_SUFFIX,
    ImageKeys,
    ImageStatus,
    storage_key,
)
from sluice.common.errors import SluiceError
from sluice.common.features.images.reader import ImageReader
from sluice.common.features.images.records import ImageRecord
from sluice.common.features.images.storage.base import Storage, StorageError
from sluice.common.features.images.storage.directory import DirectoryStorage, StoredFile
from sluice.common.features.images.storage.files import (
    commit_file,
    make_directory,
    open_part,
    part_path,
    write_all,
)
from sluice.common.features.images.storage.spool import Spool, SpoolEntry
from sluice.common.jobs.store import read_reply
from sluice.common.text import plural

#: File with the id of the store directory. It cannot collide with an object: object names do not
#: start with a dot.
STORE_ID_FILE: Final = ".store-id"
_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")


class StoreOwnership:
    """The id of one store directory, and whether Redis has it registered."""

    def __init__(self, client: Redis, directory: Path, keys: ImageKeys | None = None) -> None:
        self._client = client
        self._directory = directory
        self._key = (keys or ImageKeys()).stores

    async def id(self) -> str:
        """Id of the directory; '' if it has none."""
        return await asyncio.to_thread(self._read)

    async def is_known(self, store_id: str) -> bool:
        command: Any = self._client.sismember(self._key, store_id)
        return bool(await read_reply(command))

    async def claim_store(self) -> None:
        """Give the directory an id.

        Redis is written first: an id that Redis does not have is not trusted.
        """
        store_id = secrets.token_hex(8)
        command: Any = self._client.sadd(self._key, store_id)
        if await read_reply(command):
            await asyncio.to_thread(self._write, store_id)

    def claim_hint(self, store_id: str) -> str:
        """Remedy for the log: how an operator confirms that this Redis belongs to the store."""
        known = f"register the store: redis-cli SADD {self._key} {store_id or 'ID'}"
        return (
            known if store_id else f"write an ID to {self._directory / STORE_ID_FILE} and {known}"
        )

    def _read(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            found = (self._directory / STORE_ID_FILE).read_bytes()[:100].decode("latin-1").strip()
            return found if _ID.fullmatch(found) else ""
        return ""

    def _write(self, store_id: str) -> None:
        make_directory(self._directory)
        path = self._directory / STORE_ID_FILE
        part = part_path(path)
        descriptor = open_part(part)
        try:
            write_all(descriptor, f"{store_id}\n".encode())
            commit_file(descriptor, part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)


log = logging.getLogger(__name__)


class OrphanedObjects:
    """Removes objects of deleted images.

    Deleting an image removes its object, but a running put may write the object afterwards.
    """

    def __init__(self, storage: Storage, reader: ImageReader) -> None:
        self._storage = storage
        self._reader = reader
        self._waiting: set[asyncio.Task[None]] = set()

    async def remove(self, image_id: str) -> None:
        """Remove the object of a deleted image. Never raises."""
        try:
            await self._storage.delete(storage_key(image_id))
        except StorageError as error:
            log.warning(
                "image %s: deleted, but its object could not be removed: %s", image_id, error
            )

    def remove_after(self, putting: asyncio.Future[Any], image_id: str) -> None:
        """Remove the object once a put that cannot be stopped has ended, if the image is gone."""
        task = asyncio.ensure_future(self._remove_after(putting, image_id))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _remove_after(self, putting: asyncio.Future[Any], image_id: str) -> None:
        await asyncio.wait({putting})
        if not putting.cancelled():
            putting.exception()  # retrieve the exception so that asyncio does not log it
        try:
            if await self._reader.record(image_id) is None:
                await self.remove(image_id)
        except SluiceError as error:
            log.warning("image %s: could not check for an orphaned object: %s", image_id, error)

    async def close(self) -> None:
        await cancel(*self._waiting)


async def remove_upload(spool: Spool, image_id: str, upload_id: str, attempts: int = 0) -> None:
    """Remove the spool file of an upload.

    Never raises, so that the outcome of the image is kept.
    """
    try:
        await asyncio.to_thread(spool.remove, image_id, upload_id, attempts)
    except OSError as error:
        log.warning("image %s: could not remove the upload from the spool: %s", image_id, error)


#: Seconds between two scans of the spool, and of a store directory.
SPOOL_EVERY_S: Final = 60.0
STORE_EVERY_S: Final = 3600.0
#: Minimum age of a file to be removed; younger ones may be in use.
MIN_AGE_S: Final = 60.0
#: Age after which a partial file, or an upload that was never submitted, is abandoned.
ABANDONED_AFTER_S: Final = float(STATUS_TTL_S)
#: Objects and uploads outlive their records by a day, so that an operator can notice that a worker
#: uses the wrong Redis.
ORPHAN_RETENTION_S: Final = 24 * 3600.0

_OBJECT_KEY: Final = re.compile(
    re.escape(STORAGE_PREFIX) + r"([0-9A-Za-z][0-9A-Za-z_-]{0,127})" + re.escape(STORAGE_SUFFIX)
)


class FileCleaner:
    """Scans spool and store periodically, while this worker runs the reconciler."""

    def __init__(self, client: Redis, reader: ImageReader, spool: Spool, storage: Storage) -> None:
        self._client = client
        self._reader = reader
        self._spool = spool
        self._storage = storage
        self._spool_due = self._store_due = 0.0

    async def run_once(self) -> int:
        """Run the scans that are due; returns the number of files removed."""
        now, removed = time.monotonic(), 0
        if now >= self._spool_due:
            self._spool_due = now + SPOOL_EVERY_S
            removed += await self.clean_spool()
        if now >= self._store_due and isinstance(self._storage, DirectoryStorage):
            self._store_due = now + STORE_EVERY_S
            removed += await self.clean_store(self._storage)
        return removed

    async def clean_spool(self) -> int:
        """Remove uploads that have ended or were never submitted, and remains of crashes."""
        found = await asyncio.to_thread(lambda: list(self._spool.entries()))
        entries = [entry for entry in found if entry.age_s > MIN_AGE_S]
        records = await self._reader.records([entry.image_id for entry in entries])
        unneeded = [
            entry.path for entry, record in zip(entries, records) if not _is_needed(entry, record)
        ]
        return await _remove(unneeded, "the spool")

    async def clean_store(self, storage: DirectoryStorage) -> int:
        """Remove objects whose record is gone, and remains of crashes.

        Removes nothing unless this Redis is known to hold the records of the store.
        """
        found = await asyncio.to_thread(storage.files)
        if not await self._is_own_store(storage, found):
            return 0
        unneeded = [file.path for file in found if not file.key and file.age_s > ABANDONED_AFTER_S]
        old = [file for file in found if file.age_s > ORPHAN_RETENTION_S and _image_id(file)]
        there = await self._reader.records_exist([_image_id(file) for file in old])
        unneeded += [file.path for file, is_there in zip(old, there) if not is_there]
        return await _remove(unneeded, "the store")

    async def claim_store(self) -> None:
        """Give a new directory its id before it can contain images without records."""
        storage = self._storage
        if isinstance(storage, DirectoryStorage) and not await self._ownership(storage).id():
            await self._is_own_store(storage, await asyncio.to_thread(storage.files))

    def _ownership(self, storage: DirectoryStorage) -> StoreOwnership:
        return StoreOwnership(self._client, storage.directory, self._reader.keys)

    async def _is_own_store(self, storage: DirectoryStorage, found: Sequence[StoredFile]) -> bool:
        ownership = self._ownership(storage)
        store_id = await ownership.id()
        if store_id and await ownership.is_known(store_id):
            return True
        problem = "this Redis does not know its id"
        if not store_id:
            # A Redis that has records of all images is the right one. That includes a new
            # directory.
            images = [image_id for image_id in map(_image_id, found) if image_id]
            there = await self._reader.records_exist(images)
            if all(there):
                await ownership.claim_store()
                return True
            missing = plural(there.count(False), "image")
            problem = f"it has no id, and this Redis has no record of {missing}"
        log.warning(
            "store %s: nothing removed: %s. Check REDIS_URL; if it is right, %s",
            storage.directory,
            problem,
            ownership.claim_hint(store_id),
        )
        return False


def _image_id(file: StoredFile) -> str:
    """Id of the image that the object belongs to; '' for other files."""
    found = _OBJECT_KEY.fullmatch(file.key)
    return found[1] if found else ""


def _is_needed(entry: SpoolEntry, record: ImageRecord | None) -> bool:
    if entry.is_part:  # being written, or left by a crash
        return entry.age_s <= ABANDONED_AFTER_S
    if record is None:  # Redis may temporarily be the wrong one
        return entry.age_s <= ORPHAN_RETENTION_S
    if record.upload_id != entry.upload_id or record.ended:
        return False
    return record.status is ImageStatus.PROCESSING or entry.age_s <= ABANDONED_AFTER_S


async def _remove(paths: Sequence[Path], location: str) -> int:
    def remove() -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    if paths:
        files = plural(len(paths), "unneeded file", "unneeded files")
        log.info("removed %s from %s", files, location)
        await asyncio.to_thread(remove)
    return len(paths)
