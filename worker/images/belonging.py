"""Whether a directory of images is this Redis' own: both know the same id.

To a worker that looks at the wrong Redis, or at one that was emptied, no image has a record. It
must not take that for a reason to remove them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis

from common.contracts.images import ImageKeys
from common.images.files import make_directory, open_part, part_of, settle, write_all
from common.store import read

#: The file that has the id. No object is called so: no name of theirs begins with a dot.
ID_FILE: Final = ".store-id"
_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")


class Belonging:
    """The id of one directory, and whether Redis knows it."""

    def __init__(self, client: Redis, directory: Path, keys: ImageKeys | None = None) -> None:
        self._client = client
        self._directory = directory
        self._key = (keys or ImageKeys()).stores

    async def id(self) -> str:
        """The directory's id; '' where it has none."""
        return await asyncio.to_thread(self._read)

    async def is_known(self, store_id: str) -> bool:
        """Whether this Redis knows it."""
        command: Any = self._client.sismember(self._key, store_id)
        return bool(await read(command))

    async def begin(self) -> None:
        """Give the directory an id. Redis hears of it first: what it does not know is not ours."""
        store_id = secrets.token_hex(8)
        command: Any = self._client.sadd(self._key, store_id)
        if await read(command):
            await asyncio.to_thread(self._write, store_id)

    def remedy(self, store_id: str) -> str:
        """What a person does who knows that this Redis is the right one."""
        known = f"let it know: redis-cli SADD {self._key} {store_id or 'ID'}"
        return known if store_id else f"write an ID to {self._directory / ID_FILE} and {known}"

    def _read(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            found = (self._directory / ID_FILE).read_bytes()[:100].decode("latin-1").strip()
            return found if _ID.fullmatch(found) else ""
        return ""

    def _write(self, store_id: str) -> None:
        make_directory(self._directory)
        path = self._directory / ID_FILE
        part = part_of(path)
        descriptor = open_part(part)
        try:
            write_all(descriptor, f"{store_id}\n".encode())
            settle(descriptor, part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
