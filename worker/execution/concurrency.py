"""Runs blocking functions in threads, and coroutines until their job is canceled."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from sluice.common.aio import cancel


async def call_in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call `function` in a new daemon thread and return its result.

    Not in a thread pool: the process would wait for the pool's threads when it exits, and a handler
    that ignores its cancellation would occupy a thread of the pool for ever.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if ended.done():  # the caller was canceled
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
        except StopIteration as stop:  # cannot be set on a future
            error = RuntimeError(f"the handler raised {stop!r}")
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="handler", daemon=True).start()
    return await ended


T = TypeVar("T")


class Cancelable(Protocol):
    """A job that may be canceled."""

    async def wait_for_cancel(self) -> None:
        """Return as soon as a cancel is requested."""


class JobCanceled(Exception):
    """A cancel of the job was requested."""


async def run_until_canceled(job: Cancelable, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; cancels it and raises JobCanceled if a cancel is requested."""
    working = asyncio.ensure_future(work)
    canceling = asyncio.ensure_future(job.wait_for_cancel())
    try:
        await asyncio.wait({working, canceling}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise JobCanceled
    finally:
        await cancel(working, canceling)
