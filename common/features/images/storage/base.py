"""The interface of image storage, its errors and retries."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from sluice.common.errors import SluiceError


class StorageError(SluiceError):
    """A storage operation failed; a retry may help."""


class StoredObject(NamedTuple):
    """A stored object."""

    etag: str
    size_bytes: int


class ObjectContent(NamedTuple):
    """The content of an object."""

    size_bytes: int
    chunks: AsyncIterator[bytes]


#: Called just before an object is replaced; raises if it must not be.
ReplaceCheck = Callable[[], Awaitable[None]]


class Storage(Protocol):
    """Storage of objects by key. A repeated write replaces the object atomically."""

    #: The name in logs and responses: `dir`, `s3`.
    name: str

    async def put(
        self, key: str, data: bytes, content_type: str, may: ReplaceCheck | None = None
    ) -> StoredObject:
        """Store an object durably; raises StorageError.

        With `may`, an object that another process stored after the check is not replaced; the check
        is repeated instead. So a process that has lost its right but does not know it yet does no
        harm.
        """

    async def read(self, key: str) -> ObjectContent | None:
        """The content of an object; None if it does not exist."""

    async def url(self, key: str, seconds: int) -> str | None:
        """A URL where a client can fetch it for a while; None if only Sluice can read it."""

    async def delete(self, key: str) -> None:
        """Delete an object, if it exists."""

    async def check(self) -> None:
        """Check that it is writable; raises StorageError with the remedy."""

    async def close(self) -> None:
        """Release resources."""


#: Seconds between two tries.
RETRY_DELAYS_S: Final = (1.0, 2.0, 4.0)

Sleep = Callable[[float], Awaitable[None]]
Result = TypeVar("Result")


class TransientStorageError(StorageError):
    """An error that a retry may resolve."""


async def retry_transient(
    ask: Callable[[], Awaitable[Result]], sleep: Sleep = asyncio.sleep
) -> Result:
    """Call `ask` until it succeeds; raises the last TransientStorageError, other errors at once."""
    for pause_s in RETRY_DELAYS_S:
        try:
            return await ask()
        except TransientStorageError:
            await sleep(pause_s)
    return await ask()


#: Path segments of letters, digits, `.`, `_` and `-` that do not begin with a dot: they cannot
#: leave a directory or name a hidden file, and need no quoting in a URL.
_KEY: Final = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]*(/[0-9A-Za-z_-][0-9A-Za-z._-]*)*")
_LONGEST: Final = 512


def validate_storage_key(key: str) -> str:
    """The key; raises ValueError if it is invalid."""
    if len(key) > _LONGEST or not _KEY.fullmatch(key):
        raise ValueError(f"{key[:80]!r} is not a valid object key")
    return key
