"""Runs one call of a tool, bounded by its timeout and by a cancellation of the job."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from sluice.common import codec
from sluice.common.errors import StoreUnavailable
from sluice.worker.errors import AttemptLost, JobError
from sluice.worker.execution.concurrency import Cancelable, call_in_thread
from sluice.worker.features.tools.errors import CallCanceled, ToolFailed, ToolTimeout
from sluice.worker.features.tools.tool import Call, Tool

log = logging.getLogger(__name__)

#: Time that a stopped tool has to end before it is abandoned.
STOP_GRACE_S = 0.15
#: Longer error messages of tools are cut.
MOST_CHARS = 1000


async def run_tool(
    tool: Tool, arguments: Any, call: Call, timeout_s: float, job: Cancelable
) -> Any:
    """Run a tool with parsed arguments.

    Raises ToolTimeout, CallCanceled, ToolFailed or a JobError of the tool itself. A plain function
    cannot be stopped: its thread is abandoned.
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
    except BaseException as error:  # SystemExit, or any exception of a library
        log.warning("tool %s failed", tool.name, exc_info=True)
        raise ToolFailed(f"{tool.name}: {_error_text(error)}") from error


async def _abandon(tool: Tool, work: asyncio.Future[Any]) -> None:
    work.cancel()
    await asyncio.wait({work}, timeout=STOP_GRACE_S)
    if not work.done():
        log.warning("tool %s: did not stop when canceled, abandoned", tool.name)
    work.add_done_callback(_retrieve_exception)


def _retrieve_exception(work: asyncio.Future[Any]) -> None:
    if not work.cancelled():
        work.exception()  # retrieve it so that asyncio does not log it


def _error_text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:MOST_CHARS].rstrip(": ")
    except Exception:  # the exception's `__str__` failed
        return type(error).__name__


@dataclass(frozen=True)
class ToolOutput:
    """Output of a tool: a JSON value, or text if it was truncated."""

    value: Any
    truncated: bool = False

    @property
    def text(self) -> str:
        """The output as given to a model."""
        return self.value if isinstance(self.value, str) else codec.dumps(self.value).decode()


def limit_output(value: Any, most_bytes: int) -> ToolOutput:
    """Limit `value` to `most_bytes` of JSON; truncated output ends with a note."""
    if isinstance(value, str):
        value = value.encode(errors="replace").decode()
    try:
        whole = codec.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolFailed(f"it returned a value that is not JSON: {error}") from None
    if len(whole) <= most_bytes:
        # Keep the decoded JSON that was measured, not an object that merely serialises to it.
        return ToolOutput(value if isinstance(value, str) else codec.loads(whole))
    text = value if isinstance(value, str) else whole.decode()
    return ToolOutput(truncate_text(text, most_bytes), truncated=True)


def truncate_text(text: str, most_bytes: int) -> str:
    """The part of `text` that fits into `most_bytes` of JSON together with a note about the cut."""
    note = f"\n[truncated: the whole output has {len(text.encode(errors='replace'))} bytes]"
    limit = max(most_bytes - len(codec.dumps(note)), 0)
    head = text.encode(errors="replace")[:limit].decode(errors="ignore")
    while head and (excess := len(codec.dumps(head)) - 2 - limit) > 0:
        # A character takes up to six bytes of JSON.
        head = head[: len(head) - max(1, excess // 6)]
    return head + note
