"""Makes one call of a tool: no longer than it may take, and no longer than the job is wanted."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from common.errors import StoreUnavailable
from worker.errors import AttemptLost, JobError
from worker.threads import call_in_thread
from worker.tools.errors import CallCanceled, ToolFailed, ToolTimeout
from worker.tools.tool import Call, Tool
from worker.unless_canceled import Cancelable

log = logging.getLogger(__name__)

#: How long a tool may take to hear that it is stopped, before it is left to itself.
STUBBORN_S = 0.15
#: Longer texts of foreign errors are cut.
MOST_CHARS = 1000


async def perform(tool: Tool, arguments: Any, call: Call, timeout_s: float, job: Cancelable) -> Any:
    """What the tool returns for arguments that it has parsed.

    Raises ToolTimeout, CallCanceled, ToolFailed or a JobError of the tool's own. A plain function
    cannot be stopped: its thread is left behind.
    """
    work = asyncio.ensure_future(_invoke(tool, call, arguments))
    canceled = asyncio.ensure_future(job.wait_for_cancel())
    try:
        await asyncio.wait({work, canceled}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        if canceled.done():
            raise CallCanceled
        raise ToolTimeout(
            f"{tool.name} took longer than {timeout_s:.3g} s", repeatable=tool.safe_to_repeat
        )
    finally:
        call.stop()
        canceled.cancel()
        if not work.done():
            await _let_go(tool, work)


async def _invoke(tool: Tool, call: Call, arguments: Any) -> Any:
    try:
        if tool.is_async:
            return await tool.function(call, arguments)
        return await call_in_thread(tool.function, call, arguments)
    except (JobError, AttemptLost, StoreUnavailable):
        raise
    except asyncio.CancelledError:
        if call.stopped:
            raise
        raise ToolFailed(f"{tool.name} canceled itself") from None
    except BaseException as error:  # SystemExit, or whatever its libraries invent
        log.warning("tool %s failed", tool.name, exc_info=True)
        raise ToolFailed(f"{tool.name}: {_text_of(error)}") from error


async def _let_go(tool: Tool, work: asyncio.Future[Any]) -> None:
    work.cancel()
    await asyncio.wait({work}, timeout=STUBBORN_S)
    if not work.done():
        log.warning("tool %s ignores that it was stopped; it is left to itself", tool.name)
    work.add_done_callback(_forget)


def _forget(work: asyncio.Future[Any]) -> None:
    if not work.cancelled():
        work.exception()  # nobody else is going to ask


def _text_of(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:MOST_CHARS].rstrip(": ")
    except Exception:  # an error of its own making
        return type(error).__name__
