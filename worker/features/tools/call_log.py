"""Log of a job's tool calls: after a crash, calls that must not run twice are not repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from sluice.common import codec
from sluice.worker.features.tools.errors import OutcomeUnknown
from sluice.worker.features.tools.tool import Tool

#: A saved step may have 64 KiB, shared by the output and a few numbers.
MOST_OUTPUT_BYTES = 56 * 1024

_BEGUN, _FAILED = "begun", "failed"


class CheckpointContext(Protocol):
    """The part of a job's context that outlives an attempt."""

    attempt: int

    async def saved(self) -> dict[str, Any]:
        """Steps saved by any attempt."""

    async def save(self, name: str, value: Any) -> None:
        """Save a step; durable when it returns."""


@dataclass(frozen=True)
class CallRecord:
    """A completed call."""

    output: Any = None
    #: Kind and message, if the call failed.
    error: tuple[str, str] | None = None
    ms: int = 0
    truncated: bool = False

    @property
    def text(self) -> str:
        """The result as given to a model."""
        if self.error is not None:
            return f"error ({self.error[0]}): {self.error[1]}"
        return self.output if isinstance(self.output, str) else codec.dumps(self.output).decode()

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"ms": self.ms}
        if self.error is not None:
            value["fault"] = list(self.error)
        else:
            value["output"] = self.output
        if self.truncated:
            value["truncated"] = True
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> CallRecord:
        error = value.get("fault")
        return cls(
            output=value.get("output"),
            error=(str(error[0]), str(error[1])) if error else None,
            ms=int(value.get("ms", 0)),
            truncated=bool(value.get("truncated")),
        )


class CallLog:
    """The saved steps of a job, as found and extended by this attempt."""

    def __init__(self, context: CheckpointContext, saved: dict[str, Any]) -> None:
        self._context = context
        self._saved = saved

    @classmethod
    async def of(cls, context: CheckpointContext) -> CallLog:
        """The log written by all attempts so far."""
        return cls(context, await context.saved())

    def read(self, step: str) -> Any:
        """Value saved under a name, or None."""
        return self._saved.get(step)

    async def write(self, step: str, value: Any) -> None:
        await self._context.save(step, value)
        self._saved[step] = value

    def find_result(self, step: str) -> CallRecord | None:
        """The result of a call; None if it is not known."""
        value = self._saved.get(step)
        if not isinstance(value, dict) or _BEGUN in value or _FAILED in value:
            return None
        return CallRecord.from_json(value)

    async def begin(self, step: str, tool: Tool) -> None:
        """Record that a call is about to start.

        Raises OutcomeUnknown if it may already have run.
        """
        if tool.safe_to_repeat:
            return
        value = self._saved.get(step)
        if isinstance(value, dict) and _BEGUN in value:
            raise OutcomeUnknown(
                f"{tool.name} was running when attempt {value[_BEGUN]} was interrupted; its "
                "outcome is unknown, and it was not called again"
            )
        await self.write(step, {_BEGUN: self._context.attempt})

    async def end(self, step: str, record: CallRecord) -> None:
        """Record the result of a call, which is then not repeated."""
        await self.write(step, record.to_json())

    async def fail(self, step: str) -> None:
        """Record that a call failed; another attempt may repeat it."""
        if isinstance(self._saved.get(step), dict):
            await self.write(step, {_FAILED: self._context.attempt})
