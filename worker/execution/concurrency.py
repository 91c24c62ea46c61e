"""Runs plain handlers in threads that cannot keep a process from ending."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from common.aio import cancel


async def call_in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call `function` in a daemon thread of its own and wait for what it returns.

    A pool's threads are waited for when the process ends, however long they take; and a handler
    that ignores its cancellation would take a place of the pool for ever.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if ended.done():  # nobody waits any more
            return
        if error is None:
            ended.set_result(value)
        else:
            ended.set_exception(error)

    def run() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = context.run(function, *args)
        except StopIteration as stop:  # a future cannot hold it
            error = RuntimeError(f"the handler raised {stop!r}")
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="handler", daemon=True).start()
    return await ended


T = TypeVar("T")


class Cancelable(Protocol):
    """A job that may be canceled."""

    async def wait_for_cancel(self) -> None:
        """Return as soon as somebody wants the job canceled."""


class JobCanceled(Exception):
    """Somebody wants the job canceled."""


async def run_until_canceled(job: Cancelable, work: Coroutine[Any, Any, T]) -> T:
    """What comes of `work`; it ends, and Stopped is raised, once the job is to be canceled."""
    working = asyncio.ensure_future(work)
    asked = asyncio.ensure_future(job.wait_for_cancel())
    try:
        await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise JobCanceled
    finally:
        await cancel(working, asked)
