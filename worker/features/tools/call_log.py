"""Which calls a job has made: a call that must not be made twice is not, whatever crashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from common import codec
from worker.features.tools.errors import OutcomeUnknown
from worker.features.tools.tool import Tool

#: What a saved step may hold is 64 KiB; an output shares it with a few numbers.
MOST_OUTPUT_BYTES = 56 * 1024

_BEGUN, _FAILED = "begun", "failed"


class CheckpointContext(Protocol):
    """The part of a job's context that outlives an attempt."""

    attempt: int

    async def saved(self) -> dict[str, Any]:
        """Steps that any attempt has saved."""

    async def save(self, name: str, value: Any) -> None:
        """Keep a step; durable when it returns."""


@dataclass(frozen=True)
class CallRecord:
    """A call that has come to its end."""

    output: Any = None
    #: Kind and message where there is no output.
    error: tuple[str, str] | None = None
    ms: int = 0
    truncated: bool = False

    @property
    def text(self) -> str:
        """As a model is told it."""
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
        fault = value.get("fault")
        return cls(
            output=value.get("output"),
            error=(str(fault[0]), str(fault[1])) if fault else None,
            ms=int(value.get("ms", 0)),
            truncated=bool(value.get("truncated")),
        )


class CallLog:
    """The saved steps of one job, as this attempt found them and adds to them."""

    def __init__(self, context: CheckpointContext, saved: dict[str, Any]) -> None:
        self._context = context
        self._saved = saved

    @classmethod
    async def of(cls, context: CheckpointContext) -> CallLog:
        """What attempts so far have written."""
        return cls(context, await context.saved())

    def read(self, step: str) -> Any:
        """What was saved under a name; None for nothing."""
        return self._saved.get(step)

    async def write(self, step: str, value: Any) -> None:
        await self._context.save(step, value)
        self._saved[step] = value

    def find_result(self, step: str) -> CallRecord | None:
        """What came of a call; None where that is not known."""
        value = self._saved.get(step)
        if not isinstance(value, dict) or _BEGUN in value or _FAILED in value:
            return None
        return CallRecord.from_json(value)

    async def begin(self, step: str, tool: Tool) -> None:
        """The call is about to be made; OutcomeUnknown where it may have been made already."""
        if tool.safe_to_repeat:
            return
        value = self._saved.get(step)
        if isinstance(value, dict) and _BEGUN in value:
            raise OutcomeUnknown(
                f"{tool.name} was being called when attempt {value[_BEGUN]} broke off; what came "
                "of it is not known, and it was not called again"
            )
        await self.write(step, {_BEGUN: self._context.attempt})

    async def end(self, step: str, record: CallRecord) -> None:
        """The call has come to its end, and is not made again."""
        await self.write(step, record.to_json())

    async def fail(self, step: str) -> None:
        """The call was made and came to nothing: another attempt may make it again."""
        if isinstance(self._saved.get(step), dict):
            await self.write(step, {_FAILED: self._context.attempt})
