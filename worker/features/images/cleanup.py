"""Removes files that nobody needs: uploads that came to nothing, objects without a record."""

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

from common.aio import cancel
from common.contracts.images import (
    STATUS_TTL_S,
    STORAGE_PREFIX,
    STORAGE_SUFFIX,
    ImageKeys,
    ImageStatus,
    storage_key,
)
from common.errors import SluiceError
from common.features.images.reader import ImageReader
from common.features.images.records import ImageRecord
from common.features.images.storage.base import Storage, StorageError
from common.features.images.storage.directory import DirectoryStorage, StoredFile
from common.features.images.storage.files import (
    commit_file,
    make_directory,
    open_part,
    part_path,
    write_all,
)
from common.features.images.storage.spool import Spool, SpoolEntry
from common.jobs.store import read_reply
from common.text import plural

#: The file that has the id. No object is called so: no name of theirs begins with a dot.
STORE_ID_FILE: Final = ".store-id"
_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")


class StoreOwnership:
    """The id of one directory, and whether Redis knows it."""

    def __init__(self, client: Redis, directory: Path, keys: ImageKeys | None = None) -> None:
        self._client = client
        self._directory = directory
        self._key = (keys or ImageKeys()).stores

    async def id(self) -> str:
        """The directory's id; '' where it has none."""
        return await asyncio.to_thread(self._read)

    async def is_known(self, store_id: str) -> bool:
        command: Any = self._client.sismember(self._key, store_id)
        return bool(await read_reply(command))

    async def claim_store(self) -> None:
        """Give the directory an id. Redis hears of it first: what it does not know is not ours."""
        store_id = secrets.token_hex(8)
        command: Any = self._client.sadd(self._key, store_id)
        if await read_reply(command):
            await asyncio.to_thread(self._write, store_id)

    def claim_hint(self, store_id: str) -> str:
        """What a person does who knows that this Redis is the right one."""
        known = f"let it know: redis-cli SADD {self._key} {store_id or 'ID'}"
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
    """Whoever deletes an image removes its object, and may come before that is written."""

    def __init__(self, storage: Storage, reader: ImageReader) -> None:
        self._storage = storage
        self._reader = reader
        self._waiting: set[asyncio.Task[None]] = set()

    async def remove(self, image_id: str) -> None:
        """The image is gone: its object goes. Never raises."""
        try:
            await self._storage.delete(storage_key(image_id))
        except StorageError as error:
            log.warning("what was stored of a deleted image stays: %s", error)

    def remove_after(self, putting: asyncio.Future[Any], image_id: str) -> None:
        """Nobody waits for an object any more, which is being written and cannot be stopped."""
        task = asyncio.ensure_future(self._remove_after(putting, image_id))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _remove_after(self, putting: asyncio.Future[Any], image_id: str) -> None:
        await asyncio.wait({putting})
        if not putting.cancelled():
            putting.exception()  # it is nobody's business any more
        try:
            if await self._reader.record(image_id) is None:
                await self.remove(image_id)
        except SluiceError as error:
            log.warning("what was stored of image %s may stay: %s", image_id, error)

    async def close(self) -> None:
        await cancel(*self._waiting)


async def remove_upload(spool: Spool, image_id: str, upload_id: str, attempts: int = 0) -> None:
    """Its file is needed no more. Never raises: what came of the image is more important."""
    try:
        await asyncio.to_thread(spool.remove, image_id, upload_id, attempts)
    except OSError as error:
        log.warning("the upload of image %s stays in the spool: %s", image_id, error)


#: Seconds between two looks at the spool, and at a directory of images.
SPOOL_EVERY_S: Final = 60.0
STORE_EVERY_S: Final = 3600.0
#: Nobody is about to do something with a file that is so old.
MIN_AGE_S: Final = 60.0
#: And nobody writes to one, or knows of an upload that was never submitted, after that.
ABANDONED_AFTER_S: Final = float(STATUS_TTL_S)
#: An object outlives its record by a day, and so does an upload: whoever looks at the wrong Redis
#: has time to notice.
ORPHAN_RETENTION_S: Final = 24 * 3600.0

_OBJECT_KEY: Final = re.compile(
    re.escape(STORAGE_PREFIX) + r"([0-9A-Za-z][0-9A-Za-z_-]{0,127})" + re.escape(STORAGE_SUFFIX)
)


class FileCleaner:
    """Looks every so often, whenever it is this worker's turn."""

    def __init__(self, client: Redis, reader: ImageReader, spool: Spool, storage: Storage) -> None:
        self._client = client
        self._reader = reader
        self._spool = spool
        self._storage = storage
        self._spool_due = self._store_due = 0.0

    async def run_once(self) -> int:
        """Remove what is due to be looked at and not needed; how many files that were."""
        now, removed = time.monotonic(), 0
        if now >= self._spool_due:
            self._spool_due = now + SPOOL_EVERY_S
            removed += await self.clean_spool()
        if now >= self._store_due and isinstance(self._storage, DirectoryStorage):
            self._store_due = now + STORE_EVERY_S
            removed += await self.clean_store(self._storage)
        return removed

    async def clean_spool(self) -> int:
        """Uploads that have ended or were never submitted, and what is left of crashes."""
        found = await asyncio.to_thread(lambda: list(self._spool.entries()))
        entries = [entry for entry in found if entry.age_s > MIN_AGE_S]
        records = await self._reader.records([entry.image_id for entry in entries])
        needless = [
            entry.path for entry, record in zip(entries, records) if not _is_needed(entry, record)
        ]
        return await _remove(needless, "the spool")

    async def clean_store(self, storage: DirectoryStorage) -> int:
        """Objects whose record is gone, and what is left of crashes. Nothing at all where it is not
        certain that this Redis is where their records would be."""
        found = await asyncio.to_thread(storage.files)
        if not await self._is_own_store(storage, found):
            return 0
        needless = [file.path for file in found if not file.key and file.age_s > ABANDONED_AFTER_S]
        old = [file for file in found if file.age_s > ORPHAN_RETENTION_S and _image_id(file)]
        there = await self._reader.records_exist([_image_id(file) for file in old])
        needless += [file.path for file, is_there in zip(old, there) if not is_there]
        return await _remove(needless, "the store")

    async def claim_store(self) -> None:
        """A new directory gets its id, before there are images without records."""
        storage = self._storage
        if isinstance(storage, DirectoryStorage) and not await self._ownership(storage).id():
            await self._is_own_store(storage, await asyncio.to_thread(storage.files))

    def _ownership(self, storage: DirectoryStorage) -> StoreOwnership:
        return StoreOwnership(self._client, storage.directory, self._reader.keys)

    async def _is_own_store(self, storage: DirectoryStorage, found: Sequence[StoredFile]) -> bool:
        belonging = self._ownership(storage)
        store_id = await belonging.id()
        if store_id and await belonging.is_known(store_id):
            return True
        strangers = "this Redis does not know its id"
        if not store_id:
            # A Redis that knows every image is where they belong; of a new directory that is so.
            images = [image_id for image_id in map(_image_id, found) if image_id]
            there = await self._reader.records_exist(images)
            if all(there):
                await belonging.claim_store()
                return True
            strangers = (
                f"it has no id, and this Redis no record of {plural(there.count(False), 'image')}"
            )
        log.warning(
            "nothing is removed from the store %s: %s. See that REDIS_URL is right; if it is, %s",
            storage.directory,
            strangers,
            belonging.claim_hint(store_id),
        )
        return False


def _image_id(file: StoredFile) -> str:
    """Whose object it is; '' for what is none of ours."""
    found = _OBJECT_KEY.fullmatch(file.key)
    return found[1] if found else ""


def _is_needed(entry: SpoolEntry, record: ImageRecord | None) -> bool:
    if entry.is_part:  # somebody writes to it, or did before a crash
        return entry.age_s <= ABANDONED_AFTER_S
    if record is None:  # Redis may be somebody else's, for a while
        return entry.age_s <= ORPHAN_RETENTION_S
    if record.upload_id != entry.upload_id or record.ended:
        return False
    return record.status is ImageStatus.PROCESSING or entry.age_s <= ABANDONED_AFTER_S


async def _remove(paths: Sequence[Path], place: str) -> int:
    def remove() -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    if paths:
        files = plural(len(paths), "file that nobody needs is", "files that nobody needs are")
        log.info("%s removed from %s", files, place)
        await asyncio.to_thread(remove)
    return len(paths)
