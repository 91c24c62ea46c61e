"""Work that ends as soon as nobody wants its job any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from common.cancellation import cancel

T = TypeVar("T")


class Cancelable(Protocol):
    """A job that may be canceled."""

    async def wait_for_cancel(self) -> None:
        """Return as soon as somebody wants the job canceled."""


class Stopped(Exception):
    """Somebody wants the job canceled."""


async def unless_canceled(job: Cancelable, work: Coroutine[Any, Any, T]) -> T:
    """What comes of `work`; it ends, and Stopped is raised, once the job is to be canceled."""
    working = asyncio.ensure_future(work)
    asked = asyncio.ensure_future(job.wait_for_cancel())
    try:
        await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Stopped
    finally:
        await cancel(working, asked)
