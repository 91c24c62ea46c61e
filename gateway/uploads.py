"""A document on its way to the worker: too long for a message, so it waits in a key beside its job.

The key is written before the job is accepted, and taken back where it is not. Should this process
die in between, the key runs out by itself.
"""

from __future__ import annotations

import hashlib
import logging

from redis.asyncio import Redis
from redis.exceptions import RedisError

from common.connection import TRANSIENT_ERRORS
from common.contracts.rag import upload_key
from common.errors import StoreUnavailable

log = logging.getLogger(__name__)


class Upload:
    """The bytes of one document, for one job."""

    def __init__(self, client: Redis, data: bytes, ttl_s: int, tag: str = "") -> None:
        self._client = client
        self._tag = tag
        self._data = data
        self._ttl_s = ttl_s
        self._job_id = ""

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes."""
        return hashlib.sha256(self._data).hexdigest()

    async def put(self, job_id: str) -> None:
        """Lay it down for a job that is about to be accepted."""
        self._job_id = job_id
        try:
            await self._client.set(upload_key(job_id, self._tag), self._data, ex=self._ttl_s)
        except (RedisError, *TRANSIENT_ERRORS) as error:
            await self.take_back()  # the answer may have been lost, not the request
            raise StoreUnavailable(str(error)) from error

    async def take_back(self) -> None:
        """Nobody will come for it."""
        await drop(self._client, self._job_id, self._tag)


async def drop(client: Redis, job_id: str, tag: str = "") -> None:
    """A job that nobody will run leaves no upload behind; few have any."""
    try:
        await client.delete(upload_key(job_id, tag))
    except (RedisError, *TRANSIENT_ERRORS) as error:
        log.info("an upload that nobody needs runs out by itself: %s", error)
