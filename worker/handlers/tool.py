"""The `tool` task: calls one registered tool with checked arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from common.contracts.jobs import DataField, Task
from common.contracts.models import HandlerEventType, ModelStep, ToolField
from worker.errors import JobError
from worker.execution.context import JobContext
from worker.features.tools import builtin
from worker.features.tools.builtin.search_documents import search_tool
from worker.features.tools.call_log import MOST_OUTPUT_BYTES, CallLog, CallRecord
from worker.features.tools.errors import CallCanceled, OutcomeUnknown, ToolTimeout, UnusableOutput
from worker.features.tools.tool import Tool
from worker.features.tools.toolbox import ToolBox
from worker.registry import Registry

if TYPE_CHECKING:
    from common.settings.worker import WorkerSettings
    from worker.features.shared import SharedServices

_CALL, _RESULT = HandlerEventType.TOOL_CALL, HandlerEventType.TOOL_RESULT
_STEP = ModelStep.TOOL
#: The one call of the job, as it is saved.
CALL_STEP = "call"


class ToolPayload(BaseModel):
    """What `tool` takes."""

    model_config = ConfigDict(extra="forbid")

    tool: str = Field(min_length=1, max_length=128)
    args: dict[str, Any] = {}
    dry_run: bool = False


def register(registry: Registry, settings: WorkerSettings, shared: SharedServices) -> None:
    """Add the task `tool` and the built-in tools."""
    toolbox = registry.toolbox
    toolbox.configure(settings.tools, settings.tool_timeout_s, settings.tool_output_bytes)
    builtin.register_tools(toolbox)
    toolbox.put(search_tool(shared.rag))
    add_handler(registry)


def add_handler(registry: Registry) -> None:
    """Let `registry` do the task with its own toolbox."""
    toolbox = registry.toolbox

    async def tool(context: JobContext, payload: ToolPayload) -> dict[str, Any] | None:
        found = toolbox.find(payload.tool, context.tools)
        arguments = found.parse(payload.args)
        if payload.dry_run:
            return _dry_run_result(toolbox, found, payload)
        return await _call(toolbox, found, arguments, payload, context)

    registry.add(Task.TOOL.value, tool)


async def _call(
    toolbox: ToolBox, tool: Tool, arguments: Any, payload: ToolPayload, context: JobContext
) -> dict[str, Any] | None:
    # What may be called twice needs no bookkeeping.
    ledger = CallLog(context, {}) if tool.safe_to_repeat else await CallLog.of(context)
    record = ledger.find_result(CALL_STEP)
    if record is None:
        key = f"{context.job_id}:{CALL_STEP}"
        about = {
            ToolField.ID: CALL_STEP,
            ToolField.NAME: tool.name,
            ToolField.ATTEMPT: context.attempt,
        }
        said = {**about, ToolField.ARGUMENTS: payload.args}
        await context.emit(_CALL, said, step=_STEP)
        before_ms = context.elapsed_ms
        most_bytes = None if tool.safe_to_repeat else MOST_OUTPUT_BYTES
        try:
            await ledger.begin(CALL_STEP, tool)
            output = await toolbox.call(tool, arguments, context, key, most_bytes=most_bytes)
        except CallCanceled:
            return None
        except JobError as error:
            fault = {DataField.KIND: error.kind, DataField.MESSAGE: str(error)}
            ms = context.elapsed_ms - before_ms
            data = {**about, ToolField.ERROR: fault, ToolField.MS: ms}
            await context.emit(_RESULT, data, step=_STEP)
            if not isinstance(error, (ToolTimeout, OutcomeUnknown, UnusableOutput)):
                # It said no; of the others nobody knows, or it has done its deed.
                await ledger.fail(CALL_STEP)
            raise
        ms = context.elapsed_ms - before_ms
        record = CallRecord(output.value, None, ms, output.truncated)
        await context.emit(_RESULT, {**about, **_result_view(record)}, step=_STEP)
        if not tool.safe_to_repeat:
            await ledger.end(CALL_STEP, record)
    return _result_view(record)


def _result_view(record: CallRecord) -> dict[str, Any]:
    view: dict[str, Any] = {
        ToolField.OUTPUT: record.output,
        ToolField.MS: record.ms,
    }
    if record.truncated:
        view[ToolField.TRUNCATED] = True
    return view


def _dry_run_result(toolbox: ToolBox, tool: Tool, payload: ToolPayload) -> dict[str, Any]:
    """What a call would have done."""
    plan = {
        "call": tool.name,
        ToolField.ARGUMENTS: payload.args,
        "timeout_s": toolbox.timeout_s(tool),
        "output_bytes": toolbox.output_bytes(tool),
        "repeatable": tool.safe_to_repeat,
    }
    return {
        ToolField.OUTPUT: plan,
        ToolField.MS: 0,
        ToolField.DRY_RUN: True,
    }
