"""The `tool` task: calls one registered tool with checked arguments."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from common.contracts.jobs import DataField, Task
from common.contracts.models import Channel, ModelStep
from common.contracts.tools import ToolField
from worker.context import JobContext
from worker.errors import JobError
from worker.registry import Registry
from worker.tools.errors import CallCanceled, OutcomeUnknown, ToolTimeout, UnusableOutput
from worker.tools.ledger import MOST_OUTPUT_BYTES, Ledger, Record
from worker.tools.tool import Tool
from worker.tools.toolbox import ToolBox

_CALL, _RESULT = Channel.TOOL_CALL.value, Channel.TOOL_RESULT.value
_STEP = ModelStep.TOOL.value
#: The one call of the job, as it is saved.
CALL_STEP = "call"


class ToolPayload(BaseModel):
    """What `tool` takes."""

    model_config = ConfigDict(extra="forbid")

    tool: str = Field(min_length=1, max_length=128)
    args: dict[str, Any] = {}
    dry_run: bool = False


def register(registry: Registry) -> None:
    """Let `registry` do the task with its own toolbox."""
    toolbox = registry.toolbox

    async def tool(context: JobContext, payload: ToolPayload) -> dict[str, Any] | None:
        found = toolbox.find(payload.tool, context.tools)
        arguments = found.parse(payload.args)
        if payload.dry_run:
            return _would(toolbox, found, payload)
        return await _call(toolbox, found, arguments, payload, context)

    registry.add(Task.TOOL.value, tool)


async def _call(
    toolbox: ToolBox, tool: Tool, arguments: Any, payload: ToolPayload, context: JobContext
) -> dict[str, Any] | None:
    # What may be called twice needs no bookkeeping.
    ledger = Ledger(context, {}) if tool.safe_to_repeat else await Ledger.of(context)
    record = ledger.ended(CALL_STEP)
    if record is None:
        key = f"{context.job_id}:{CALL_STEP}"
        about = {
            ToolField.ID.value: CALL_STEP,
            ToolField.NAME.value: tool.name,
            ToolField.ATTEMPT.value: context.attempt,
        }
        said = {**about, ToolField.ARGUMENTS.value: payload.args}
        await context.emit(_CALL, said, step=_STEP)
        before_ms = context.elapsed_ms
        most_bytes = None if tool.safe_to_repeat else MOST_OUTPUT_BYTES
        try:
            await ledger.begin(CALL_STEP, tool)
            output = await toolbox.call(tool, arguments, context, key, most_bytes=most_bytes)
        except CallCanceled:
            return None
        except JobError as error:
            fault = {DataField.KIND.value: error.kind, DataField.MESSAGE.value: str(error)}
            ms = context.elapsed_ms - before_ms
            data = {**about, ToolField.ERROR.value: fault, ToolField.MS.value: ms}
            await context.emit(_RESULT, data, step=_STEP)
            if not isinstance(error, (ToolTimeout, OutcomeUnknown, UnusableOutput)):
                # It said no; of the others nobody knows, or it has done its deed.
                await ledger.fail(CALL_STEP)
            raise
        ms = context.elapsed_ms - before_ms
        record = Record(output.value, None, ms, output.truncated)
        await context.emit(_RESULT, {**about, **_view(record)}, step=_STEP)
        if not tool.safe_to_repeat:
            await ledger.end(CALL_STEP, record)
    return _view(record)


def _view(record: Record) -> dict[str, Any]:
    view: dict[str, Any] = {
        ToolField.OUTPUT.value: record.output,
        ToolField.MS.value: record.ms,
    }
    if record.truncated:
        view[ToolField.TRUNCATED.value] = True
    return view


def _would(toolbox: ToolBox, tool: Tool, payload: ToolPayload) -> dict[str, Any]:
    """What a call would have done."""
    plan = {
        "call": tool.name,
        ToolField.ARGUMENTS.value: payload.args,
        "timeout_s": toolbox.timeout_s(tool),
        "output_bytes": toolbox.output_bytes(tool),
        "repeatable": tool.safe_to_repeat,
    }
    return {
        ToolField.OUTPUT.value: plan,
        ToolField.MS.value: 0,
        ToolField.DRY_RUN.value: True,
    }
