"""Asks a store again that could not do it just now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from common.images.storage import StorageError

#: Seconds between the tries.
PAUSES_S: Final = (1.0, 2.0, 4.0)

Sleep = Callable[[float], Awaitable[None]]
Result = TypeVar("Result")


class PassingStorageError(StorageError):
    """One that may be gone at the next try."""


async def patiently(ask: Callable[[], Awaitable[Result]], sleep: Sleep = asyncio.sleep) -> Result:
    """What `ask` answers, once it does; raises the last PassingStorageError, and others at once."""
    for pause_s in PAUSES_S:
        try:
            return await ask()
        except PassingStorageError:
            await sleep(pause_s)
    return await ask()
