"""Runs the tool calls of a model.

Each call emits events and is saved, so that it runs only once.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sluice.common import codec
from sluice.common.contracts.models import (
    AgentFinishReason,
    HandlerEventType,
    ToolErrorKind,
    ToolField,
)
from sluice.common.text import plural
from sluice.worker.errors import JobError
from sluice.worker.execution.context import JobContext
from sluice.worker.features.agent.answer import MOST_ARGUMENT_BYTES, ModelAnswer
from sluice.worker.features.agent.types import AgentStep
from sluice.worker.features.model.types import CANCELED, ToolCall
from sluice.worker.features.tools.call_log import MOST_OUTPUT_BYTES, CallLog, CallRecord
from sluice.worker.features.tools.errors import CallCanceled, InvalidArguments, UnknownTool
from sluice.worker.features.tools.tool import Tool
from sluice.worker.features.tools.toolbox import ToolBox

#: A tool called this many times in a row with invalid arguments is withdrawn from the run.
MOST_INVALID_CALLS = 2
MOST_ERROR_CHARS = 2000


class RepeatedCall(JobError):
    """The model repeated an identical call after a warning."""

    kind = ToolErrorKind.REPEATED


class TooManyCalls(JobError):
    """The run's limit of calls is reached."""

    kind = ToolErrorKind.TOO_MANY


class ToolCallRunner:
    """Runs and counts all calls of one run, including those of earlier attempts."""

    def __init__(
        self,
        context: JobContext,
        toolbox: ToolBox,
        tools: Sequence[Tool],
        call_log: CallLog,
        most: int,
        event_step: str,
    ) -> None:
        self._context = context
        self._toolbox = toolbox
        self._tools = tools
        self._call_log = call_log
        self._most = most
        self._event_step = event_step
        self.steps: list[AgentStep] = []
        #: True if the model asked for more calls than allowed.
        self.limit_exceeded = False
        self._call_count = 0
        self._invalid: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._warned: set[str] = set()

    @property
    def exhausted(self) -> bool:
        return self._call_count >= self._most

    @property
    def usable(self) -> list[Tool]:
        """Tools not withdrawn because of invalid arguments."""
        return [tool for tool in self._tools if self._invalid[tool.name] < MOST_INVALID_CALLS]

    def logged_ms(self, round: int, answer: ModelAnswer) -> int:
        """Milliseconds that earlier attempts took for the calls of an answer."""
        records = (
            self._call_log.find_result(_call_step(round, number))
            for number in range(len(answer.calls))
        )
        return sum(record.ms for record in records if record is not None)

    async def run_calls(
        self, round: int, answer: ModelAnswer, deadline: float
    ) -> tuple[list[tuple[ToolCall, str]], str | None]:
        """Run all calls of an answer in order.

        Returns (call, text for the model) pairs and the finish reason if the run is over, else
        None.
        """
        results: list[tuple[ToolCall, str]] = []
        for number, call in enumerate(answer.calls):
            name = _call_step(round, number)
            tool = self._find(call.name)
            arguments = _parse_arguments(call.arguments)
            digest = _digest(call.name if tool is None else tool.name, arguments)
            record = self._call_log.find_result(name)
            if record is None:
                if self._context.cancel_requested:
                    return results, CANCELED
                if time.monotonic() >= deadline:
                    return results, AgentFinishReason.MAX_TIME
                if digest in self._warned:
                    return results, AgentFinishReason.TOOL_LOOP
                step = AgentStep(round, call.id, _tool_name(call, tool), arguments, CallRecord())
                try:
                    step = await self._run_call(
                        step, name, tool, digest, deadline, number in answer.too_long
                    )
                except CallCanceled:
                    return results, CANCELED
            else:
                step = AgentStep(round, call.id, _tool_name(call, tool), arguments, record)
            self._account(step, digest)
            results.append((call, step.record.text))
        return results, None

    async def _run_call(
        self,
        step: AgentStep,
        name: str,
        tool: Tool | None,
        digest: str,
        deadline: float,
        too_long: bool,
    ) -> AgentStep:
        """Run one call; saves it before and after, and emits its events."""
        context = self._context
        about = step.event_fields(context.attempt)
        await self._emit(HandlerEventType.TOOL_CALL, {**about, ToolField.ARGUMENTS: step.arguments})
        began = time.monotonic()
        try:
            tool = self._check_allowed(tool, step, digest, too_long)
            parsed = tool.parse(step.arguments)
            await self._call_log.begin(name, tool)
            output = await self._toolbox.call(
                tool,
                parsed,
                context,
                f"{context.job_id}:{name}",
                most_s=deadline - time.monotonic(),
                most_bytes=MOST_OUTPUT_BYTES,
            )
            record = CallRecord(output.value, None, _ms_since(began), output.truncated)
        except JobError as error:
            message = f"{error}"[:MOST_ERROR_CHARS] + self._advice(error, step)
            record = CallRecord(None, (error.kind, message), _ms_since(began))
        step = AgentStep(step.round, step.id, step.name, step.arguments, record)
        await self._emit(HandlerEventType.TOOL_RESULT, {**about, **step.outcome()})
        if record.error is None or record.error[0] != ToolErrorKind.TOO_MANY:
            await self._call_log.end(name, record)
        return step

    def _check_allowed(
        self, tool: Tool | None, step: AgentStep, digest: str, too_long: bool
    ) -> Tool:
        """Return the tool, or raise the JobError that refuses the call."""
        if self.exhausted:
            raise TooManyCalls(
                f"{plural(self._most, 'call was', 'calls were')} made, and no more may be"
            )
        if digest in self._seen:
            raise RepeatedCall(
                "this very call was made before, and you have its result; use that, or do "
                "something else"
            )
        if tool is None or self._invalid[tool.name] >= MOST_INVALID_CALLS:
            names = ", ".join(tool.wire_name for tool in self.usable) or "none"
            raise UnknownTool(f"there is no tool {step.name!r} here; there are: {names}")
        if too_long:
            raise InvalidArguments(
                f"{step.name}: the arguments are too long; {MOST_ARGUMENT_BYTES} bytes at most"
            )
        if not isinstance(step.arguments, dict):
            raise InvalidArguments(f"{step.name}: the arguments are not a JSON object")
        return tool

    def _advice(self, error: JobError, step: AgentStep) -> str:
        if not isinstance(error, InvalidArguments):
            return ""
        if self._invalid[step.name] + 1 < MOST_INVALID_CALLS:
            return ". Correct the arguments and call it again."
        return ". It cannot be called any more; do without it."

    def _account(self, step: AgentStep, digest: str) -> None:
        """Update the counters; called for new calls and for those loaded from the call log."""
        self.steps.append(step)
        kind = "" if step.record.error is None else step.record.error[0]
        if kind == ToolErrorKind.TOO_MANY:
            self.limit_exceeded = True
            return
        self._call_count += 1
        if kind == ToolErrorKind.ARGUMENTS:
            self._invalid[step.name] += 1
        elif kind != ToolErrorKind.UNKNOWN:
            self._invalid[step.name] = 0
        if kind == ToolErrorKind.REPEATED:
            self._warned.add(digest)
        elif not self._may_repeat(kind, step):
            self._seen.add(digest)

    def _may_repeat(self, kind: str, step: AgentStep) -> bool:
        """True if repeating the call may succeed and cannot apply a side effect twice."""
        if kind != ToolErrorKind.TIMEOUT:
            return kind == ToolErrorKind.UNAVAILABLE
        tool = self._find(step.name)  # the effect of a timed-out call is unknown; it may still run
        return tool is not None and tool.safe_to_repeat

    def _find(self, name: str) -> Tool | None:
        for tool in self._tools:
            if name in (tool.wire_name, tool.name):
                return tool
        return None

    async def _emit(self, channel: str, data: Mapping[str, Any]) -> None:
        await self._context.emit(channel, data, step=self._event_step)


def _call_step(round: int, number: int) -> str:
    return f"agent.{round}.{number}"


def _tool_name(call: ToolCall, tool: Tool | None) -> str:
    return call.name if tool is None else tool.name


def _parse_arguments(arguments: str) -> Any:
    """Parse the model's arguments; returns the text itself if it is not valid JSON."""
    if not arguments.strip():  # some models omit them
        return {}
    try:
        value = codec.loads(arguments.encode(errors="replace"))
        if isinstance(value, str):  # some models encode JSON twice
            value = codec.loads(value.encode(errors="replace"))
        codec.dumps(value)  # raises for values nested too deeply to encode
    except (ValueError, TypeError, RecursionError):
        return arguments
    return value


def _digest(name: str, arguments: Any) -> str:
    try:
        whole = codec.dumps_canonical([name, arguments])
    except (TypeError, ValueError, RecursionError):
        whole = repr([name, arguments]).encode(errors="replace")
    return hashlib.sha256(whole).hexdigest()


def _ms_since(began: float) -> int:
    return int((time.monotonic() - began) * 1000)
