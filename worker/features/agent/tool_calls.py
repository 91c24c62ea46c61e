"""Makes the calls that a model asks for: each an event and a saved step, none of them twice."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from common import codec
from common.contracts.models import AgentFinishReason, HandlerEventType, ToolErrorKind, ToolField
from common.text import plural
from worker.errors import JobError
from worker.execution.context import JobContext
from worker.features.agent.answer import MOST_ARGUMENT_BYTES, ModelAnswer
from worker.features.agent.types import AgentStep
from worker.features.model.types import CANCELED, ToolCall
from worker.features.tools.call_log import MOST_OUTPUT_BYTES, CallLog, CallRecord
from worker.features.tools.errors import CallCanceled, InvalidArguments, UnknownTool
from worker.features.tools.tool import Tool
from worker.features.tools.toolbox import ToolBox

#: So often in a row may a tool be called with arguments that do not fit; then it is withdrawn.
MOST_INVALID_CALLS = 2
MOST_ERROR_CHARS = 2000


class RepeatedCall(JobError):
    """The model was told once."""

    kind = ToolErrorKind.REPEATED


class TooManyCalls(JobError):
    """The run may make no more."""

    kind = ToolErrorKind.TOO_MANY


class ToolCallRunner:
    """All calls of one run, those of earlier attempts too."""

    def __init__(
        self,
        context: JobContext,
        toolbox: ToolBox,
        tools: Sequence[Tool],
        ledger: CallLog,
        most: int,
        event_step: str,
    ) -> None:
        self._context = context
        self._toolbox = toolbox
        self._tools = tools
        self._call_log = ledger
        self._most = most
        self._event_step = event_step
        self.steps: list[AgentStep] = []
        #: Whether the model wanted more than it may.
        self.limit_exceeded = False
        self._made = 0
        self._invalid: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._warned: set[str] = set()

    @property
    def exhausted(self) -> bool:
        """Whether no more calls may be made."""
        return self._made >= self._most

    @property
    def usable(self) -> list[Tool]:
        """Tools that the model may still call."""
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
        """All calls of an answer, one after the other: what the model is told of each.

        Beside it: why the run is over, if it is.
        """
        told: list[tuple[ToolCall, str]] = []
        for number, call in enumerate(answer.calls):
            name = _call_step(round, number)
            tool = self._find(call.name)
            arguments = _parse_arguments(call.arguments)
            digest = _digest(call.name if tool is None else tool.name, arguments)
            record = self._call_log.find_result(name)
            if record is None:
                if self._context.cancel_requested:
                    return told, CANCELED
                if time.monotonic() >= deadline:
                    return told, AgentFinishReason.MAX_TIME
                if digest in self._warned:
                    return told, AgentFinishReason.TOOL_LOOP
                step = AgentStep(round, call.id, _tool_name(call, tool), arguments, CallRecord())
                try:
                    step = await self._run_call(
                        step, name, tool, digest, deadline, number in answer.too_long
                    )
                except CallCanceled:
                    return told, CANCELED
            else:
                step = AgentStep(round, call.id, _tool_name(call, tool), arguments, record)
            self._account(step, digest)
            told.append((call, step.record.text))
        return told, None

    async def _run_call(
        self,
        step: AgentStep,
        name: str,
        tool: Tool | None,
        digest: str,
        deadline: float,
        too_long: bool,
    ) -> AgentStep:
        """One call, with its events, saved before and after."""
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
        """The tool, unless something is to be said against the call."""
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
            raise InvalidArguments(f"{step.name}: the arguments are no JSON object")
        return tool

    def _advice(self, error: JobError, step: AgentStep) -> str:
        if not isinstance(error, InvalidArguments):
            return ""
        if self._invalid[step.name] + 1 < MOST_INVALID_CALLS:
            return ". Correct the arguments and call it again."
        return ". It cannot be called any more; do without it."

    def _account(self, step: AgentStep, digest: str) -> None:
        """The same from a call that was just made and from one that is remembered."""
        self.steps.append(step)
        kind = "" if step.record.error is None else step.record.error[0]
        if kind == ToolErrorKind.TOO_MANY:
            self.limit_exceeded = True
            return
        self._made += 1
        if kind == ToolErrorKind.ARGUMENTS:
            self._invalid[step.name] += 1
        elif kind != ToolErrorKind.UNKNOWN:
            self._invalid[step.name] = 0
        if kind == ToolErrorKind.REPEATED:
            self._warned.add(digest)
        elif not self._may_repeat(kind, step):
            self._seen.add(digest)

    def _may_repeat(self, kind: str, step: AgentStep) -> bool:
        """Whether to make the same call again may help, and does no deed twice."""
        if kind != ToolErrorKind.TIMEOUT:
            return kind == ToolErrorKind.UNAVAILABLE
        tool = self._find(step.name)  # what it did until then is not known; it may still run
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
    """What the model wrote, as JSON; the text itself where it is none."""
    if not arguments.strip():  # some leave them out where there are none
        return {}
    try:
        value = codec.loads(arguments.encode(errors="replace"))
        if isinstance(value, str):  # some write JSON into JSON
            value = codec.loads(value.encode(errors="replace"))
        codec.dumps(value)  # what is nested too deep can be read, and not written
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
