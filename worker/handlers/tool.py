"""The `tool` task: calls one registered tool with checked arguments, or lets a model choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sluice.common.contracts.jobs import DataField, Task
from sluice.common.contracts.models import HandlerEventType, ModelStep, ToolField
from sluice.worker.errors import JobError
from sluice.worker.execution.context import JobContext
from sluice.worker.features.agent.loop import run_agent
from sluice.worker.features.agent.types import AgentLimits, AgentModel
from sluice.worker.features.model.errors import NoModel
from sluice.worker.features.model.token_events import TokenStream, completion_result
from sluice.worker.features.model.types import ChatRequest
from sluice.worker.features.tools import builtin
from sluice.worker.features.tools.builtin.search_documents import search_tool
from sluice.worker.features.tools.call_log import MOST_OUTPUT_BYTES, CallLog, CallRecord
from sluice.worker.features.tools.catalog import ToolCatalog
from sluice.worker.features.tools.errors import (
    CallCanceled,
    OutcomeUnknown,
    ToolTimeout,
    UnusableOutput,
)
from sluice.worker.features.tools.tool import Tool
from sluice.worker.features.tools.toolbox import ToolBox
from sluice.worker.handlers.chat_payload import TEXT_CHARS
from sluice.worker.registry import Registry

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings
    from sluice.worker.features.shared import SharedServices

_CALL, _RESULT = HandlerEventType.TOOL_CALL, HandlerEventType.TOOL_RESULT
_STEP = ModelStep.TOOL
#: Step under which the job's call is saved.
CALL_STEP = "call"
#: Most tools offered to the model, as in a `chat` job.
MOST_OFFERED = 128
_DEFAULT_LIMITS = AgentLimits()


class ToolPayload(BaseModel):
    """Payload of the task `tool`: a tool and its arguments, or a prompt for the model."""

    model_config = ConfigDict(extra="forbid")

    tool: str | None = Field(None, min_length=1, max_length=128)
    args: dict[str, Any] = {}
    dry_run: bool = False
    text: str | None = Field(None, min_length=1, max_length=TEXT_CHARS)

    @model_validator(mode="after")
    def _makes_sense(self) -> ToolPayload:
        if (self.tool is None) == (self.text is None):
            raise ValueError("give either tool, or text to let the model choose tools")
        if self.text is not None and (self.args or self.dry_run):
            raise ValueError("args and dry_run need tool")
        return self


def register(registry: Registry, settings: WorkerSettings, shared: SharedServices) -> None:
    """Add the task `tool` and the built-in tools."""
    toolbox = registry.toolbox
    toolbox.configure(settings.tools, settings.tool_timeout_s, settings.tool_output_bytes)
    builtin.register_tools(toolbox)
    toolbox.put(search_tool(shared.rag), built_in=True)
    registry.add_service(ToolCatalog(toolbox))
    add_handler(registry, shared.model, AgentLimits.of(settings))


def add_handler(
    registry: Registry, model: AgentModel | None = None, limits: AgentLimits = _DEFAULT_LIMITS
) -> None:
    """Register the task `tool`, with the tools of the registry."""
    toolbox = registry.toolbox

    async def tool(context: JobContext, payload: ToolPayload) -> dict[str, Any] | None:
        if payload.text is not None:
            return await _answer(context, model, toolbox, payload.text, limits)
        assert payload.tool is not None  # checked by the payload
        found = toolbox.find(payload.tool, context.tools)
        arguments = found.parse(payload.args)
        if payload.dry_run:
            return _dry_run_result(toolbox, found, payload)
        return await _call(toolbox, found, arguments, payload, context)

    registry.add(Task.TOOL.value, tool)


async def _answer(
    context: JobContext,
    model: AgentModel | None,
    toolbox: ToolBox,
    text: str,
    limits: AgentLimits,
) -> dict[str, Any]:
    """Let the model answer, with all tools that the job may use."""
    if model is None:
        raise NoModel
    names = toolbox.names(context.tools)[:MOST_OFFERED]
    request = ChatRequest(messages=[{"role": "user", "content": text}])
    async with TokenStream(context, _STEP) as tokens:
        answered = await run_agent(context, model, toolbox, request, names, tokens, limits, _STEP)
        await tokens.usage(answered.completion)
    return {
        **completion_result(context, answered.completion),
        "steps": [step.view() for step in answered.steps],
        "rounds": answered.rounds,
    }


async def _call(
    toolbox: ToolBox, tool: Tool, arguments: Any, payload: ToolPayload, context: JobContext
) -> dict[str, Any] | None:
    # Calls that are safe to repeat need no log.
    call_log = CallLog(context, {}) if tool.safe_to_repeat else await CallLog.of(context)
    record = call_log.find_result(CALL_STEP)
    if record is None:
        key = f"{context.job_id}:{CALL_STEP}"
        about = {
            ToolField.ID: CALL_STEP,
            ToolField.NAME: tool.name,
            ToolField.ATTEMPT: context.attempt,
        }
        data = {**about, ToolField.ARGUMENTS: payload.args}
        await context.emit(_CALL, data, step=_STEP)
        before_ms = context.elapsed_ms
        most_bytes = None if tool.safe_to_repeat else MOST_OUTPUT_BYTES
        try:
            await call_log.begin(CALL_STEP, tool)
            output = await toolbox.call(tool, arguments, context, key, most_bytes=most_bytes)
        except CallCanceled:
            return None
        except JobError as error:
            problem = {DataField.KIND: error.kind, DataField.MESSAGE: str(error)}
            ms = context.elapsed_ms - before_ms
            data = {**about, ToolField.ERROR: problem, ToolField.MS: ms}
            await context.emit(_RESULT, data, step=_STEP)
            if not isinstance(error, (ToolTimeout, OutcomeUnknown, UnusableOutput)):
                # The tool reported a failure. After the other errors its effect is unknown or has
                # happened.
                await call_log.fail(CALL_STEP)
            raise
        ms = context.elapsed_ms - before_ms
        record = CallRecord(output.value, None, ms, output.truncated)
        await context.emit(_RESULT, {**about, **_result_view(record)}, step=_STEP)
        if not tool.safe_to_repeat:
            await call_log.end(CALL_STEP, record)
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
    """Describes the call without running it."""
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
