"""Where processed images are kept: what every store can do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple, Protocol

from common.errors import SluiceError


class StorageError(SluiceError):
    """The store could not do it; another try may help."""


class Stored(NamedTuple):
    """An object as the store has it."""

    etag: str
    size_bytes: int


class Content(NamedTuple):
    """An object on its way out."""

    size_bytes: int
    chunks: AsyncIterator[bytes]


#: Asked just before an object is replaced; raises where it may not be.
May = Callable[[], Awaitable[None]]


class Storage(Protocol):
    """One store. The same key may be written again: the last one counts, whole or not at all."""

    #: As it is called in logs and answers: `dir`, `s3`.
    name: str

    async def put(self, key: str, data: bytes, content_type: str, may: May | None = None) -> Stored:
        """Keep an object; it is there, durably, when this returns. Raises StorageError.

        With `may` nothing is replaced that somebody else has put since that was asked: then it is
        asked again. So who may not any more, and does not know yet, harms nobody.
        """

    async def read(self, key: str) -> Content | None:
        """An object's bytes; None where there is none."""

    async def url(self, key: str, seconds: int) -> str | None:
        """Where a client may fetch it itself for a while; None where only we can read it."""

    async def delete(self, key: str) -> None:
        """Forget an object, if there is one."""

    async def check(self) -> None:
        """Whether it can be written to; raises StorageError that names the remedy."""

    async def close(self) -> None:
        """Nothing more will be asked."""
