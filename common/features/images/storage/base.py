"""Where processed images are kept: what every store can do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from common.errors import SluiceError


class StorageError(SluiceError):
    """The store could not do it; another try may help."""


class StoredObject(NamedTuple):
    """An object as the store has it."""

    etag: str
    size_bytes: int


class ObjectContent(NamedTuple):
    """An object on its way out."""

    size_bytes: int
    chunks: AsyncIterator[bytes]


#: Asked just before an object is replaced; raises where it may not be.
ReplaceCheck = Callable[[], Awaitable[None]]


class Storage(Protocol):
    """One store. The same key may be written again: the last one counts, whole or not at all."""

    #: As it is called in logs and answers: `dir`, `s3`.
    name: str

    async def put(
        self, key: str, data: bytes, content_type: str, may: ReplaceCheck | None = None
    ) -> StoredObject:
        """Keep an object; it is there, durably, when this returns. Raises StorageError.

        With `may` nothing is replaced that somebody else has put since that was asked: then it is
        asked again. So who may not any more, and does not know yet, harms nobody.
        """

    async def read(self, key: str) -> ObjectContent | None:
        """An object's bytes; None where there is none."""

    async def url(self, key: str, seconds: int) -> str | None:
        """Where a client may fetch it itself for a while; None where only we can read it."""

    async def delete(self, key: str) -> None:
        """Forget an object, if there is one."""

    async def check(self) -> None:
        """Whether it can be written to; raises StorageError that names the remedy."""

    async def close(self) -> None:
        """Nothing more will be asked."""


#: Seconds between the tries.
RETRY_DELAYS_S: Final = (1.0, 2.0, 4.0)

Sleep = Callable[[float], Awaitable[None]]
Result = TypeVar("Result")


class TransientStorageError(StorageError):
    """One that may be gone at the next try."""


async def retry_transient(
    ask: Callable[[], Awaitable[Result]], sleep: Sleep = asyncio.sleep
) -> Result:
    """What `ask` answers, once it does; raises the last PassingStorageError, and others at once."""
    for pause_s in RETRY_DELAYS_S:
        try:
            return await ask()
        except TransientStorageError:
            await sleep(pause_s)
    return await ask()


#: Parts of letters, digits, `.`, `_` and `-`, none of which begins with a dot: no way out of a
#: directory, no hidden file, nothing to be quoted in a URL.
_KEY: Final = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]*(/[0-9A-Za-z_-][0-9A-Za-z._-]*)*")
_LONGEST: Final = 512


def validate_storage_key(key: str) -> str:
    """The key itself; raises ValueError for one that no store takes."""
    if len(key) > _LONGEST or not _KEY.fullmatch(key):
        raise ValueError(f"{key[:80]!r} cannot be the key of an object")
    return key
