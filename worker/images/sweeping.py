"""Removes files that nobody needs: uploads that came to nothing, objects without a record."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from common.contracts.images import STATUS_TTL_S, STORAGE_PREFIX, STORAGE_SUFFIX, ImageStatus
from common.images.dir_storage import DirStorage, StoredFile
from common.images.reader import ImageReader
from common.images.records import ImageRecord
from common.images.spool import Spool, SpoolEntry
from common.images.storage import Storage
from worker.images.belonging import Belonging

log = logging.getLogger(__name__)

#: Seconds between two looks at the spool, and at a directory of images.
SPOOL_EVERY_S: Final = 60.0
STORE_EVERY_S: Final = 3600.0
#: Nobody is about to do something with a file that is so old.
SETTLED_S: Final = 60.0
#: And nobody writes to one, or knows of an upload that was never submitted, after that.
GIVEN_UP_S: Final = float(STATUS_TTL_S)
#: An object outlives its record by a day, and so does an upload: whoever looks at the wrong Redis
#: has time to notice.
RECORDLESS_KEPT_S: Final = 24 * 3600.0

_OBJECT: Final = re.compile(
    re.escape(STORAGE_PREFIX) + r"([0-9A-Za-z][0-9A-Za-z_-]{0,127})" + re.escape(STORAGE_SUFFIX)
)


class Sweeper:
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
            removed += await self.sweep_spool()
        if now >= self._store_due and isinstance(self._storage, DirStorage):
            self._store_due = now + STORE_EVERY_S
            removed += await self.sweep_store(self._storage)
        return removed

    async def sweep_spool(self) -> int:
        """Uploads that have ended or were never submitted, and what is left of crashes."""
        found = await asyncio.to_thread(lambda: list(self._spool.entries()))
        entries = [entry for entry in found if entry.age_s > SETTLED_S]
        records = await self._reader.records([entry.image_id for entry in entries])
        needless = [
            entry.path for entry, record in zip(entries, records) if not _is_needed(entry, record)
        ]
        return await _remove(needless, "the spool")

    async def sweep_store(self, storage: DirStorage) -> int:
        """Objects whose record is gone, and what is left of crashes. Nothing at all where it is not
        certain that this Redis is where their records would be."""
        found = await asyncio.to_thread(storage.files)
        if not await self._is_ours(storage, found):
            return 0
        needless = [file.path for file in found if not file.key and file.age_s > GIVEN_UP_S]
        old = [file for file in found if file.age_s > RECORDLESS_KEPT_S and _image_of(file)]
        there = await self._reader.exist([_image_of(file) for file in old])
        needless += [file.path for file, is_there in zip(old, there) if not is_there]
        return await _remove(needless, "the store")

    async def begin(self) -> None:
        """A new directory gets its id, before there are images without records."""
        storage = self._storage
        if isinstance(storage, DirStorage) and not await self._belonging(storage).id():
            await self._is_ours(storage, await asyncio.to_thread(storage.files))

    def _belonging(self, storage: DirStorage) -> Belonging:
        return Belonging(self._client, storage.directory, self._reader.keys)

    async def _is_ours(self, storage: DirStorage, found: Sequence[StoredFile]) -> bool:
        belonging = self._belonging(storage)
        store_id = await belonging.id()
        if store_id and await belonging.is_known(store_id):
            return True
        strangers = "this Redis does not know its id"
        if not store_id:
            # A Redis that knows every image is where they belong; of a new directory that is so.
            images = [image_id for image_id in map(_image_of, found) if image_id]
            there = await self._reader.exist(images)
            if all(there):
                await belonging.begin()
                return True
            strangers = f"it has no id, and this Redis no record of {there.count(False)} images"
        log.warning(
            "nothing is removed from the store %s: %s. See that REDIS_URL is right; if it is, %s",
            storage.directory,
            strangers,
            belonging.remedy(store_id),
        )
        return False


def _image_of(file: StoredFile) -> str:
    """Whose object it is; '' for what is none of ours."""
    found = _OBJECT.fullmatch(file.key)
    return found[1] if found else ""


def _is_needed(entry: SpoolEntry, record: ImageRecord | None) -> bool:
    if entry.is_part:  # somebody writes to it, or did before a crash
        return entry.age_s <= GIVEN_UP_S
    if record is None:  # Redis may be somebody else's, for a while
        return entry.age_s <= RECORDLESS_KEPT_S
    if record.upload_id != entry.upload_id or record.ended:
        return False
    return record.status is ImageStatus.PROCESSING or entry.age_s <= GIVEN_UP_S


async def _remove(paths: Sequence[Path], place: str) -> int:
    def remove() -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    if paths:
        log.info("%d files that nobody needs are removed from %s", len(paths), place)
        await asyncio.to_thread(remove)
    return len(paths)
