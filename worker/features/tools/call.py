"""Makes one call of a tool: no longer than it may take, and no longer than the job is wanted."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from common import codec
from common.errors import StoreUnavailable
from worker.errors import AttemptLost, JobError
from worker.execution.concurrency import Cancelable, call_in_thread
from worker.features.tools.errors import CallCanceled, ToolFailed, ToolTimeout
from worker.features.tools.tool import Call, Tool

log = logging.getLogger(__name__)

#: How long a tool may take to hear that it is stopped, before it is left to itself.
STOP_GRACE_S = 0.15
#: Longer texts of foreign errors are cut.
MOST_CHARS = 1000


async def run_tool(
    tool: Tool, arguments: Any, call: Call, timeout_s: float, job: Cancelable
) -> Any:
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
            await _abandon(tool, work)


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
        raise ToolFailed(f"{tool.name}: {_error_text(error)}") from error


async def _abandon(tool: Tool, work: asyncio.Future[Any]) -> None:
    work.cancel()
    await asyncio.wait({work}, timeout=STOP_GRACE_S)
    if not work.done():
        log.warning("tool %s ignores that it was stopped; it is left to itself", tool.name)
    work.add_done_callback(_retrieve_exception)


def _retrieve_exception(work: asyncio.Future[Any]) -> None:
    if not work.cancelled():
        work.exception()  # nobody else is going to ask


def _error_text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:MOST_CHARS].rstrip(": ")
    except Exception:  # an error of its own making
        return type(error).__name__


@dataclass(frozen=True)
class ToolOutput:
    """A tool's output: a JSON value, or text where it was too long."""

    value: Any
    truncated: bool = False

    @property
    def text(self) -> str:
        """As a model is told it."""
        return self.value if isinstance(self.value, str) else codec.dumps(self.value).decode()


def limit_output(value: Any, most_bytes: int) -> ToolOutput:
    """`value` with at most `most_bytes` of JSON; what is cut off is said at the end of the rest."""
    if isinstance(value, str):
        value = value.encode(errors="replace").decode()
    try:
        whole = codec.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolFailed(f"it returned what JSON cannot hold: {error}") from None
    if len(whole) <= most_bytes:
        # What is kept is what was measured: no object of the tool's own that only becomes JSON.
        return ToolOutput(value if isinstance(value, str) else codec.loads(whole))
    text = value if isinstance(value, str) else whole.decode()
    return ToolOutput(truncate_text(text, most_bytes), truncated=True)


def truncate_text(text: str, most_bytes: int) -> str:
    """As much of `text` as fits into `most_bytes` of JSON together with a note that it was cut."""
    note = f"\n[cut off: the whole has {len(text.encode(errors='replace'))} bytes]"
    room = max(most_bytes - len(codec.dumps(note)), 0)
    head = text.encode(errors="replace")[:room].decode(errors="ignore")
    while head and (excess := len(codec.dumps(head)) - 2 - room) > 0:
        # A character takes up to six bytes of JSON.
        head = head[: len(head) - max(1, excess // 6)]
    return head + note
